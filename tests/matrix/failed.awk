# Makes one line of what a program of unit tests printed: each failed test with its message, or the end of the output.
/panicked at / { inside = 1 }
/^note: run with/ || /^$/ || /^---- / || /^test / { inside = 0 }
inside { messages = messages " " $0 }
/^test .*FAILED$/ { names = names " " $2 }
NF { last = $0 }
END { print program ":" names " |" (messages ? messages : " " last) }
