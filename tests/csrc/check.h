// The least a test needs: TEST(name) { CHECK(...); } in one file that is a program.
//
// A failed check is printed with its place, the test goes on, and the program ends with 1.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

// How the program is compiled.
#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitizer;
#endif

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures{0};  // a body on another thread may count

inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  ++failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

}  // namespace check

#define TEST(name)                                            \
  static void name();                                         \
  static const check::Registration name##_entry{#name, name}; \
  static void name()

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) check::fail(__FILE__, __LINE__, "CHECK(" #condition ") failed"); \
  } while (false)

// That `statement` throws a Kind; the value is its message.
#define CHECK_THROWS(Kind, statement)                                          \
  [&]() -> std::string {                                                       \
    try {                                                                      \
      statement;                                                               \
    } catch (const Kind& error) {                                              \
      return error.what();                                                     \
    }                                                                          \
    check::fail(__FILE__, __LINE__, "no " #Kind " was thrown by " #statement); \
    return "";                                                                 \
  }()

int main(int count, char** arguments) {
  int ran = 0;
  for (const check::Test& test : check::tests()) {
    if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
    const int before = check::failures;
    try {
      test.body();
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, error.what());
    }
    std::printf("%s %s\n", check::failures == before ? "ok    " : "FAILED", test.name);
    std::fflush(stdout);
    ++ran;
  }
  std::printf("%d tests, %d failed checks\n", ran, check::failures.load());
  return check::failures > 0 || ran == 0;
}
