/* C++'s operators and the memory resource of ebbtide.h.
 *   forms             all forms allocate and free, aligned as asked, at the same time in threads
 *   out-of-memory     the new-handler is called, bad_alloc is thrown, the nothrow forms return null
 *   direct            the operators are those of the object that defines malloc
 *   replaced          the program's own `new(size_t)` and `delete(void *)`, compiled with -DREPLACED, serve all forms
 *   library           the same, where the operators are a shared library's
 *   resource          containers of std::pmr
 * Compiled as a shared object, it is a plugin: forms_of_plugin().
 */
#define EBBTIDE_PMR
#include "../../include/ebbtide.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define CHECK(cond)                                                       \
    do {                                                                  \
        if (!(cond)) {                                                    \
            fprintf(stderr, "FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond); \
            _Exit(1);                                                     \
        }                                                                 \
    } while (0)

#ifdef REPLACED
/* A header before each object, which only these two know. */
static std::size_t own_new, own_delete;
static const std::size_t MARK = 0x5ca1ab1e;

void *operator new(std::size_t size)
{
    own_new++;
    char *p = static_cast<char *>(std::malloc(size + 16));
    if (!p) throw std::bad_alloc();
    std::memcpy(p, &MARK, sizeof MARK);
    return p + 16;
}

void operator delete(void *p) noexcept
{
    if (!p) return;
    own_delete++;
    char *start = static_cast<char *>(p) - 16;
    CHECK(!std::memcmp(start, &MARK, sizeof MARK));
    std::free(start);
}
#endif

#ifdef LIBRARY
extern "C" void operators_called(std::size_t *news, std::size_t *deletes)
{
    *news = own_new;
    *deletes = own_delete;
}
#else

/* Hides where a pointer comes from, so that the compiler removes no pair. */
static void *hide(void *p)
{
    asm volatile("" : "+r"(p) : : "memory");
    return p;
}

static void *use(void *hidden, std::size_t size, std::size_t align = 16)
{
    char *p = static_cast<char *>(hide(hidden));
    CHECK(p && reinterpret_cast<std::size_t>(p) % align == 0);
    std::memset(p, 0x5a, size);
    return p;
}

static const std::nothrow_t &quiet = std::nothrow;

static void plain_forms(std::size_t size)
{
    ::operator delete(use(::operator new(size), size));
    ::operator delete(use(::operator new(size), size), size);
    ::operator delete(use(::operator new(size, quiet), size), quiet);
    ::operator delete[](use(::operator new[](size), size));
    ::operator delete[](use(::operator new[](size), size), size);
    ::operator delete[](use(::operator new[](size, quiet), size), quiet);
    ::operator delete(nullptr);
    ::operator delete(nullptr, size);
    ::operator delete[](nullptr, size);
}

static void aligned_forms(std::size_t size, std::size_t bytes)
{
    std::align_val_t align{bytes};
    ::operator delete(use(::operator new(size, align), size, bytes), align);
    ::operator delete(use(::operator new(size, align), size, bytes), size, align);
    ::operator delete(use(::operator new(size, align, quiet), size, bytes), align, quiet);
    ::operator delete[](use(::operator new[](size, align), size, bytes), align);
    ::operator delete[](use(::operator new[](size, align), size, bytes), size, align);
    ::operator delete[](use(::operator new[](size, align, quiet), size, bytes), align, quiet);
    ::operator delete(nullptr, align);
}

static void forms()
{
    auto all = [] {
        for (std::size_t size : {0, 1, 15, 16, 17, 100, 1000, 5000, 70000, 300000, 3000000}) {
            plain_forms(size);
            for (std::size_t align = 1; align <= 65536; align *= 2) aligned_forms(size, align);
        }
    };
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; n++) threads.emplace_back(all);
    for (auto &one : threads) one.join();
    errno = 4711;
    ::operator delete(hide(::operator new(100)));
    CHECK(errno == 4711);
}

/* For a program that has no C++ library before it opens this. */
extern "C" void forms_of_plugin() { forms(); }

static int handled;

static void handler()
{
    if (++handled % 3 == 0) throw std::runtime_error("no more");
}

template <class New> static void throws(New attempt)
{
    handled = 0;
    std::set_new_handler(nullptr);
    bool thrown = false;
    try {
        attempt();
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    std::set_new_handler(handler);
    thrown = false;
    try {
        attempt();
    } catch (const std::runtime_error &) {
        thrown = true;
    }
    CHECK(thrown && handled == 3);
}

template <class New> static void returns_null(New attempt)
{
    std::set_new_handler(nullptr);
    CHECK(!attempt());
    handled = 0;
    std::set_new_handler([] { handled++, throw std::bad_alloc(); });
    CHECK(!attempt() && handled == 1);
}

static void out_of_memory()
{
    std::size_t much = static_cast<std::size_t>(hide(reinterpret_cast<void *>(PTRDIFF_MAX / 2)) ? PTRDIFF_MAX / 2 : 0);
    std::align_val_t align{64};
    throws([=] { hide(::operator new(much)); });
    throws([=] { hide(::operator new[](much)); });
    throws([=] { hide(::operator new(much, align)); });
    throws([=] { hide(::operator new[](much, align)); });
    returns_null([=] { return hide(::operator new(much, quiet)); });
    returns_null([=] { return hide(::operator new[](much, quiet)); });
    returns_null([=] { return hide(::operator new(much, align, quiet)); });
    returns_null([=] { return hide(::operator new[](much, align, quiet)); });
}

/* All forms reach the two that were replaced; aligned forms are the C++ library's. */
static void replaced(void (*called)(std::size_t *, std::size_t *))
{
    std::size_t news, deletes, more_news, more_deletes;
    called(&news, &deletes);
    plain_forms(100);
    called(&more_news, &more_deletes);
    CHECK(more_news - news == 6 && more_deletes - deletes == 6);
    aligned_forms(100, 64);
    std::string text(1000, 'x');
    std::map<std::string, std::vector<int>> rows;
    for (int n = 0; n < 1000; n++) rows[std::to_string(n) + text].push_back(n);
}

#if __cplusplus >= 201703L && __has_include(<memory_resource>)
static void resource()
{
    ebbtide::memory_resource own, other;
    CHECK(own == other && own != *std::pmr::null_memory_resource());
    for (std::size_t align = 1; align <= 4096; align *= 2)
        for (std::size_t size : {0, 1, 100, 5000, 300000})
            own.deallocate(use(own.allocate(size, align), size, align), size, align);
    {
        std::pmr::map<std::pmr::string, std::pmr::vector<long>> rows(&own);
        for (int n = 0; n < 1000; n++)
            rows[std::pmr::string(std::to_string(n) + std::string(100, 'x'), &own)].assign(n, n);
        CHECK(rows.size() == 1000 && rows.get_allocator().resource() == &own);
        std::pmr::monotonic_buffer_resource arena(&own);
        std::pmr::vector<int> numbers(10000, 1, &arena);
    }
    bool thrown = false;
    try {
        hide(own.allocate(PTRDIFF_MAX / 2, 16));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown && ebbtide::resource()->is_equal(own));
}
#endif

int main(int, char **arguments)
{
    std::string mode = arguments[1];
    if (mode == "forms") forms();
    else if (mode == "out-of-memory") out_of_memory();
#ifdef REPLACED
    else if (mode == "replaced") replaced([](std::size_t *news, std::size_t *deletes) { *news = own_new, *deletes = own_delete; });
#endif
    else if (mode == "library") {
        auto called = reinterpret_cast<void (*)(std::size_t *, std::size_t *)>(dlsym(RTLD_DEFAULT, "operators_called"));
        CHECK(called);
        replaced(called);
#if __cplusplus >= 201703L && __has_include(<memory_resource>)
    } else if (mode == "resource") {
        resource();
#endif
    } else CHECK(!"a known mode");
    puts("ok");
}
#endif
