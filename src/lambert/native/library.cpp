// What Python asks the library before it calls a kernel.
extern "C" {

// The version of the kernels' interface, which src/lambert/native/__init__.py compares with its own. Change both when
// the arguments of a kernel change.
long lambert_version() { return 1; }
}
