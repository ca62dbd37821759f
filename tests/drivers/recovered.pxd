# What a Recovery found, as lists: see recovered.py. Nothing here is for other compiled modules.
