# Breaks the state of the compiled half on purpose (see check_driver.py). A .pxd makes it a compiled module; it offers nothing to cimport.
