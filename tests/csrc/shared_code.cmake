# Fails if csrc/target_<name>.cpp, which is compiled for more than the baseline, defines a function outside
# cellerate::<name> that other objects may define as well (an inline function, a template of the standard library).
# The linker keeps one copy of such a function for all callers, perhaps one with instructions which this processor
# lacks.
set(shared "")
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "target_(avx[a-z0-9]*)\\.")
    continue()
  endif()
  set(name ${CMAKE_MATCH_1})
  string(LENGTH ${name} length)
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " W [^\n]+" weak "${symbols}")
  list(FILTER weak EXCLUDE REGEX "9cellerate${length}${name}")
  foreach(symbol IN LISTS weak)
    string(APPEND shared "\n  target_${name}:${symbol}")
  endforeach()
endforeach()
if(shared)
  message(FATAL_ERROR "Give these internal linkage, or the namespace of the target:${shared}")
endif()
