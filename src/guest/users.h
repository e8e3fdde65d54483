/* Accounts of the guest, read from /etc/passwd and /etc/group without libc's databases. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/span.h"

struct buf;

#define USERS_FILE_MAX  1048576U
#define USER_GROUPS_MAX 64U
#define USER_TEXT_BYTES 256U

struct user {
    char name[USER_TEXT_BYTES];
    char home[USER_TEXT_BYTES];
    char shell[USER_TEXT_BYTES];
    uid_t uid;
    gid_t gid;
    size_t n_groups;
    gid_t groups[USER_GROUPS_MAX]; /* supplementary ones, the primary included */
};

/* The last account found, good as long as both files are unchanged. */
struct users {
    bool valid;
    char asked[USER_TEXT_BYTES];
    struct stat passwd;
    struct stat group;
    struct user user;
};

/* Finds a name or decimal uid ("" is root, which exists even without a passwd file). The result
 * belongs to u until the next call. -ENOENT, or -errno of reading. */
int users_find(struct users *u, struct span name, const struct user **ret_user) _must_check_;

/* Reads one of the two files (ret_text's cap applies); what is no regular file (a fifo would block)
 * counts as missing. 0 or -errno. */
int users_read_file(const char *path, struct buf *ret_text) _must_check_;

/* The pure part: looks `name` up in the text of the two files. 0, -ENOENT, or -EBADMSG for an
 * entry that cannot be used. */
int user_parse(struct span passwd, struct span group, struct span name, struct user *ret_user)
    _must_check_;
