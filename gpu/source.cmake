# SPDX-License-Identifier: MIT
# source.cmake -- writes the kernels as text in C, for the compilers of drivers at run time.
#
#     cmake -DOUT=source.c "-DFILES=kernels/words.h;kernels/arguments.h;..." -P source.cmake
#
# The files are in the order in which a compiler reads them, so their #includes of one another
# become empty lines.  Errors of a compiler name file and line (#line).  The text is an array of
# bytes, because C promises strings of 4095 characters only.

if(NOT OUT OR NOT FILES)
    message(FATAL_ERROR "source.cmake: -DOUT and -DFILES are needed")
endif()

set(text "")
foreach(path IN LISTS FILES)
    get_filename_component(name "${path}" NAME)
    file(READ "${path}" part)
    string(REGEX REPLACE "\r\n" "\n" part "${part}")
    string(REGEX REPLACE "\n[ \t]*#[ \t]*include[ \t]+\"kernels/[^\n]*" "\n" part "\n${part}")
    # The newline that was added is the end of the #line.
    string(APPEND text "#line 1 \"kernels/${name}\"${part}")
    if(NOT text MATCHES "\n$")
        string(APPEND text "\n")
    endif()
endforeach()

string(HEX "${text}" bytes)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
if(bytes MATCHES "0x[89a-f]")
    message(FATAL_ERROR "source.cmake: kernels must be ASCII")
endif()
string(REPEAT "....." 20 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")

set(c "/* Made by gpu/source.cmake from gpu/kernels. */
extern const char loci_gpu_source[];
const char loci_gpu_source[] = {
${bytes}
0 };
")
# An unchanged file keeps its time, so that nothing is compiled again.
set(before "")
if(EXISTS "${OUT}")
    file(READ "${OUT}" before)
endif()
if(NOT before STREQUAL c)
    file(WRITE "${OUT}" "${c}")
endif()
