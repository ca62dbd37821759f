/* Lets gRPC serve a TCP socket that listens already. gRPC makes and binds a socket of its own, and pyarrow has no way to hand it one.
 *
 * in:  LD_PRELOAD of the Flight service's process, so that the `bind` below is the one that gRPC calls; adopt(descriptor)
 * out: the next TCP socket that is bound to the port of `descriptor` is replaced by that listening socket, under its own number
 *
 * D1  One adopt, one bind. Every other bind goes to the kernel as it came.
 * D2  In a process that imports the module without the preload adopt() is False, and no bind changes.
 *
 * Why: docs/DATAPLANE.md, "The port of the Flight service". flight/listener.py is its only user.
 */
#define bind bind_of_the_header /* its argument is a transparent union in one C library and a pointer in another */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/socket.h>
#undef bind
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* the listening socket that the next bind is answered with; -1: there is none */
static atomic_int waiting = -1;

/* In network order; -1: no address of TCP. IPv4 and IPv6 have the port at the same place. */
static int port_of(const struct sockaddr *address, socklen_t length)
{
    if (address == NULL || length < sizeof(struct sockaddr_in) || (address->sa_family != AF_INET && address->sa_family != AF_INET6))
        return -1;
    return ((const struct sockaddr_in *)address)->sin_port;
}

static int is_for(int descriptor, const struct sockaddr *address, socklen_t length, int listener)
{
    struct sockaddr_storage own;
    socklen_t own_length = sizeof own, size = sizeof(int);
    int type = 0, port = port_of(address, length);

    return port > 0 && getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockname(listener, (struct sockaddr *)&own, &own_length) == 0 && port_of((struct sockaddr *)&own, own_length) == port;
}

static int own_bind(int descriptor, const struct sockaddr *address, socklen_t length)
{
    int listener = atomic_load(&waiting);

    if (listener < 0 || !is_for(descriptor, address, length, listener) || !atomic_compare_exchange_strong(&waiting, &listener, -1))
        return (int)syscall(SYS_bind, descriptor, address, length);
    if (dup3(listener, descriptor, O_CLOEXEC) < 0)
        return -1;
    close(listener);
    return 0;
}

__attribute__((visibility("default"))) int bind(int descriptor, const struct sockaddr *address, socklen_t length);
int bind(int descriptor, const struct sockaddr *address, socklen_t length)
{
    return own_bind(descriptor, address, length);
}

/* Whether another library's call of bind reaches this file. */
static int is_preloaded(void)
{
    Dl_info theirs, ours;
    void *found = dlsym(RTLD_DEFAULT, "bind");

    return found != NULL && dladdr(found, &theirs) && dladdr((void *)own_bind, &ours) && theirs.dli_fbase == ours.dli_fbase;
}

static PyObject *adopt(PyObject *module, PyObject *argument)
{
    int descriptor = PyObject_AsFileDescriptor(argument);

    (void)module;
    if (descriptor < 0)
        return NULL;
    if (!is_preloaded())
        Py_RETURN_FALSE;
    atomic_store(&waiting, descriptor);
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"adopt", adopt, METH_O, "Answers the next bind to that port with the socket of this descriptor, which is owned from now on. False: not preloaded."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_adopt", .m_doc = "A listening socket for gRPC.", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__adopt(void)
{
    return PyModuleDef_Init(&definition);
}
