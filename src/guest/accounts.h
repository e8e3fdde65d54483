/* Names and numbers of all users and groups of the guest, from /etc/passwd and /etc/group without
 * libc's databases: for a child that names the owners of many files. */
#pragma once

#include <sys/types.h>

#include "base/buf.h"

struct accounts {
    bool loaded;
    struct buf passwd;
    struct buf group;
    /* The last answers; the spans point into the texts. */
    bool has_user;
    uid_t uid;
    struct span user;
    bool has_group;
    gid_t gid;
    struct span group_name;
};

/* Nothing is read before the first question. */
void accounts_init(struct accounts *a);
void accounts_done(struct accounts *a);

/* The name, "" where there is none. It belongs to a. */
struct span accounts_user_name(struct accounts *a, uid_t uid);
struct span accounts_group_name(struct accounts *a, gid_t gid);
/* A name, or a decimal number, which need not exist. 0 or -EINVAL. */
int accounts_user_id(struct accounts *a, struct span text, uid_t *ret_uid) _must_check_;
int accounts_group_id(struct accounts *a, struct span text, gid_t *ret_gid) _must_check_;

/* The pure part, for the text of either file, whose first and third fields are name and number.
 * "", or -ENOENT, where there is none. */
struct span account_find_name(struct span text, uint32_t id);
int account_find_id(struct span text, struct span name, uint32_t *ret_id) _must_check_;
