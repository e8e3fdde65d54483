/* Test support: the fake node's files, kept in memory. `/endless` has 32 MiB that nobody wrote,
 * `/full` has no room, `/denied` refuses what was sent. */
#pragma once

#include <stdbool.h>

struct fake_files;
struct http_exchange;
struct loop;

struct fake_files *fake_files_new(struct loop *loop);
/* Answers …/files and what is below; `rest` is the path behind the sandbox. */
void fake_files_serve(struct fake_files *files,
                      struct http_exchange *exchange,
                      const char *sandbox_id,
                      const char *rest);
