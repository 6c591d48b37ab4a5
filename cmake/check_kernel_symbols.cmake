# cmake -DNM=... -DOBJECTS=a.o,b.o -P: fails where an object file has a weak symbol. The linker keeps
# one of several weak definitions for all of a program, maybe one that only some machines can run.
string(REPLACE "," ";" OBJECTS "${OBJECTS}")
list(LENGTH OBJECTS count)
if(count LESS 3)
  message(FATAL_ERROR "the kernels of three instruction sets are expected, not: ${OBJECTS}")
endif()
execute_process(COMMAND ${NM} --demangle ${OBJECTS} OUTPUT_VARIABLE symbols
                        COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]* [WwVvu] [^\n]*" weak "${symbols}")
if(weak)
  message(FATAL_ERROR "weak symbols: ${weak}")
endif()
