# Ebbtide: build, try, test, measure, install. `make help` lists the targets.
#
# Results: $(TARGET)/release/libebbtide.so, a link to it by its soname, $(TARGET)/release/ebbtide, and
# $(TARGET)/release/ebbtide-bench.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo
CC      ?= cc

BINDIR  ?= $(PREFIX)/bin
LIBDIR  ?= $(PREFIX)/lib
INCDIR  ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR  ?= $(DATADIR)/man/man1
BASHDIR ?= $(DATADIR)/bash-completion/completions
ZSHDIR  ?= $(DATADIR)/zsh/site-functions
FISHDIR ?= $(DATADIR)/fish/vendor_completions.d

TARGET  := $(or $(CARGO_TARGET_DIR),target)
LIBRARY := $(TARGET)/release/libebbtide.so
ARCHIVE := $(TARGET)/release/libebbtide.a
PROGRAM := $(TARGET)/release/ebbtide
BENCH   := $(TARGET)/release/ebbtide-bench
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The name that programs linked with the library ask for. It changes with the interface, not with the version.
SONAME  := $(shell sed -n 's/.*-soname,\([^"]*\)".*/\1/p' crates/ebbtide-preload/build.rs)

all: build

help:
	@echo 'make            build the library and the programs (release)'
	@echo 'make static     libebbtide.a, for static programs'
	@echo 'make demo       redis and python with Ebbtide, and without beside it'
	@echo 'make test       unit, property, model-checked and process-level tests'
	@echo 'make fuzz       fuzzers, MINUTES=10 in total; writes docs/results/fuzz-DATE.md'
	@echo 'make soak       all kinds of work at once for MINUTES=10; writes docs/results/soak-DATE.md'
	@echo 'make sanitize   valgrind, sanitizers and Miri; writes docs/results/sanitize-DATE.md'
	@echo 'make suites     tests of glibc, jemalloc, mimalloc, redis and others; ONLY="glibc redis" for some; writes docs/results/suites-DATE.md'
	@echo 'make big        large programs, with glibc and with Ebbtide; ONLY="nginx java" for some; writes docs/results/big-DATE.md'
	@echo 'make matrix     kernels and C libraries in emulated machines; ONLY="7.2/2.43 …" for some of them'
	@echo 'make bench      build the peers and compare single operations with them'
	@echo 'make lint       formatting, clippy, rustdoc, and whether the docs are true'
	@echo 'make book       the pages of docs/ as a book, in target/book; needs mdbook'
	@echo 'make packages   packages for Debian, RPM and Python, an archive and an image, in $(TARGET)/packages; tests them'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)'
	@echo 'make install-bench  the benchmarks (ebbtide-bench) too; the same PREFIX and DESTDIR'
	@echo 'make uninstall  the same PREFIX and DESTDIR'
	@echo 'make clean      remove what was built here'

need-cargo:
	@command -v $(CARGO) >/dev/null || { echo 'cargo not found: install Rust from https://rustup.rs'; exit 1; }

need-cc:
	@command -v $(CC) >/dev/null || { echo '$(CC) not found: install a C compiler (Debian: apt install gcc libc6-dev)'; exit 1; }

build: library
	$(CARGO) build --release -p ebbtide-cli -p ebbtide-bench

# The library alone, with a link to it by its soname.
library: need-cargo need-cc
	$(CARGO) build --release -p ebbtide-preload
	ln -sfn libebbtide.so '$(TARGET)/release/$(SONAME)'

# libebbtide.a, for static programs of glibc and of musl: cc -static prog.c libebbtide.a
static: need-cargo need-cc
	scripts/static

demo: build
	scripts/demo

test: need-cargo need-cc
	scripts/test

# For scripts/test: all tests, and the programs, as debug builds.
tests: need-cargo
	$(CARGO) test --workspace --no-run

# An interrupted run goes on where it was. Some 40 minutes on 2 CPUs.
matrix: library
	scripts/aarch64
	$(CARGO) run -q -p ebbtide-tests --bin matrix -- $(if $(ONLY),only $(ONLY))

# Fuzzers. Some seconds of each are a part of `make test`.
MINUTES ?= 10
fuzz: need-cargo
	scripts/fuzz $(MINUTES)

# Half a minute of it is a part of `make test`.
soak: build
	scripts/soak $(MINUTES)

sanitize: build
	scripts/sanitize

# Other people's tests and programs. As root on Debian they install what they need. Half an hour each on 2 CPUs.
suites big: build
	$(CARGO) run -q -p ebbtide-tests --bin $@ -- $(ONLY)

bench: build
	$(MAKE) -C bench/peers
	$(BENCH) micro

# The cheap ones first.
lint: need-cargo
	scripts/check-docs
	scripts/check-rooms
	scripts/release --check
	scripts/results-age
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir '$(TARGET)' -- -D warnings
	scripts/aarch64 lint
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

book:
	@command -v mdbook >/dev/null || { echo 'mdbook not found: cargo install mdbook --locked'; exit 1; }
	mdbook build

packages: build static
	scripts/packages
	scripts/test-packages

# No build here: `sudo make install` must leave nothing of root's in $(TARGET).
install:
	@test -x '$(PROGRAM)' -a -f '$(LIBRARY)' || { echo 'nothing built yet: run make first'; exit 1; }
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(LIBDIR)/cmake/ebbtide' '$(DESTDIR)$(INCDIR)' '$(DESTDIR)$(MANDIR)' \
	    '$(DESTDIR)$(BASHDIR)' '$(DESTDIR)$(ZSHDIR)' '$(DESTDIR)$(FISHDIR)'
	install -m 755 '$(PROGRAM)' '$(DESTDIR)$(BINDIR)/ebbtide'
	install -m 755 '$(LIBRARY)' '$(DESTDIR)$(LIBDIR)/libebbtide.so.$(VERSION)'
	ln -sfn 'libebbtide.so.$(VERSION)' '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	ln -sfn '$(SONAME)' '$(DESTDIR)$(LIBDIR)/libebbtide.so'
	test ! -f '$(ARCHIVE)' || install -m 644 '$(ARCHIVE)' '$(DESTDIR)$(LIBDIR)/libebbtide.a'
	@# Of several versions ldconfig would take the highest, which need not be this one.
	@for old in '$(DESTDIR)$(LIBDIR)/$(SONAME)'.*; do \
	    [ "$${old##*/}" = 'libebbtide.so.$(VERSION)' ] || rm -f "$$old"; done
	install -m 644 include/ebbtide.h '$(DESTDIR)$(INCDIR)/ebbtide.h'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCDIR@|$(INCDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' packaging/ebbtide.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/ebbtide.pc'
	for name in config config-version; do \
	    sed -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCDIR@|$(INCDIR)|' -e 's|@SONAME@|$(SONAME)|' -e 's|@VERSION@|$(VERSION)|' \
	        "packaging/ebbtide-$$name.cmake.in" > "$(DESTDIR)$(LIBDIR)/cmake/ebbtide/ebbtide-$$name.cmake"; done
	chmod 644 '$(DESTDIR)$(LIBDIR)/pkgconfig/ebbtide.pc' '$(DESTDIR)$(LIBDIR)/cmake/ebbtide/'*
	'$(PROGRAM)' man --dir '$(DESTDIR)$(MANDIR)'
	'$(PROGRAM)' completions bash > '$(DESTDIR)$(BASHDIR)/ebbtide'
	'$(PROGRAM)' completions zsh > '$(DESTDIR)$(ZSHDIR)/_ebbtide'
	'$(PROGRAM)' completions fish > '$(DESTDIR)$(FISHDIR)/ebbtide.fish'
	@test -n '$(DESTDIR)' || echo 'installed; if the loader does not find -lebbtide yet, run ldconfig as root'

install-bench:
	@test -x '$(BENCH)' || { echo 'nothing built yet: run make first'; exit 1; }
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(MANDIR)' '$(DESTDIR)$(BASHDIR)' '$(DESTDIR)$(ZSHDIR)' '$(DESTDIR)$(FISHDIR)'
	install -m 755 '$(BENCH)' '$(DESTDIR)$(BINDIR)/ebbtide-bench'
	'$(BENCH)' man --dir '$(DESTDIR)$(MANDIR)'
	'$(BENCH)' completions bash > '$(DESTDIR)$(BASHDIR)/ebbtide-bench'
	'$(BENCH)' completions zsh > '$(DESTDIR)$(ZSHDIR)/_ebbtide-bench'
	'$(BENCH)' completions fish > '$(DESTDIR)$(FISHDIR)/ebbtide-bench.fish'

uninstall:
	rm -rf '$(DESTDIR)$(LIBDIR)/cmake/ebbtide'
	rm -f '$(DESTDIR)$(BINDIR)/ebbtide' '$(DESTDIR)$(BINDIR)/ebbtide-bench' '$(DESTDIR)$(LIBDIR)/libebbtide.so' \
	    '$(DESTDIR)$(LIBDIR)/$(SONAME)' '$(DESTDIR)$(LIBDIR)/$(SONAME)'.* '$(DESTDIR)$(LIBDIR)/libebbtide.a' \
	    '$(DESTDIR)$(INCDIR)/ebbtide.h' '$(DESTDIR)$(LIBDIR)/pkgconfig/ebbtide.pc' \
	    '$(DESTDIR)$(MANDIR)/ebbtide.1' '$(DESTDIR)$(MANDIR)'/ebbtide-*.1 \
	    '$(DESTDIR)$(BASHDIR)/ebbtide' '$(DESTDIR)$(ZSHDIR)/_ebbtide' '$(DESTDIR)$(FISHDIR)/ebbtide.fish' \
	    '$(DESTDIR)$(BASHDIR)/ebbtide-bench' '$(DESTDIR)$(ZSHDIR)/_ebbtide-bench' '$(DESTDIR)$(FISHDIR)/ebbtide-bench.fish'

clean: need-cargo
	$(CARGO) clean
	$(MAKE) -C bench/peers clean

.PHONY: all help need-cargo need-cc build library static demo test tests fuzz soak sanitize suites big matrix bench lint book packages install \
    install-bench uninstall clean
