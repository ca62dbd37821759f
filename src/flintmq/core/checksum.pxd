# CRC-32C for Python callers (core/crc32c.pxd has the C function).
cpdef unsigned int crc32c_of(const unsigned char[:] data, unsigned int crc=*)
