// Settings of the C library, of the OpenMP runtime and of signals that this process needs.
#pragma once

namespace mw {

// Both runtimes read some settings before main. Sets those that the user has not chosen and starts the program once
// more with the same arguments; returns if there is nothing to set, or if that fails.
void restart_with_settings(char** argv);

// Lets malloc return large buffers to the system at once, unless MALLOC_MMAP_THRESHOLD_ is set.
void keep_large_buffers_off_heap();

// A process that reads a mapped file that is no longer there dies by SIGBUS; from now on it says why first.
void explain_bus_errors();

}  // namespace mw
