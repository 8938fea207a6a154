# How a thread shares the processor with others.
cdef extern from "base/scheduling_impl.h" nogil:
    void schedule_as_others(int nice)
    void ask_for_short_turns()
    void wait_for_others()
