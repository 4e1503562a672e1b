# what: Go with cgo: C memory that goroutines on many threads pass on
# needs: go:golang-go gcc:gcc
# loaded: work
# prepare: yes
# limit_s: 600

[ "$1" = prepare ] || exec "$SCRATCH/work"
export GOCACHE=$SCRATCH/go-cache GOPATH=$SCRATCH/go GO111MODULE=off CGO_ENABLED=1
cat > "$SCRATCH/work.go" <<'END'
package main

/*
#include <stdlib.h>
#include <string.h>
static char *make(size_t n, int c) { char *p = malloc(n); memset(p, c, n); return p; }
static long check(char *p, size_t n, int c) { long bad = 0; for (size_t i = 0; i < n; i++) bad += p[i] != (char) c; free(p); return bad; }
*/
import "C"
import (
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

type piece struct {
	at   *C.char
	n, c int
}

func main() {
	pieces := make(chan piece, 64)
	var makers, checkers sync.WaitGroup
	var lock sync.Mutex
	bad, bytes := 0, 0
	for m := 0; m < 8; m++ {
		makers.Add(1)
		go func(m int) {
			defer makers.Done()
			runtime.LockOSThread()
			for i := 0; i < 3000; i++ {
				n := 1 + (i*7919+m*13)%20000
				pieces <- piece{C.make(C.size_t(n), C.int(i&127)), n, i & 127}
			}
		}(m)
	}
	for k := 0; k < 8; k++ {
		checkers.Add(1)
		go func() {
			defer checkers.Done()
			runtime.LockOSThread()
			for p := range pieces {
				wrong := int(C.check(p.at, C.size_t(p.n), C.int(p.c)))
				lock.Lock()
				bad += wrong
				bytes += p.n
				lock.Unlock()
			}
		}()
	}
	makers.Wait()
	close(pieces)
	checkers.Wait()
	out, err := exec.Command("sh", "-c", "echo child").Output()
	fmt.Println(bad, bytes, string(out), err)
	time.Sleep(200 * time.Millisecond)
}
END
go build -o "$SCRATCH/work" "$SCRATCH/work.go"
