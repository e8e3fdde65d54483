/* API key records. The store has the SHA-256 of a key, never the key. */
#pragma once

#include <stdint.h>

#include "api/store.h"
#include "base/id.h"

#define KEY_HASH_SIZE 32
#define KEY_NAME_SIZE 65

enum key_role {
    KEY_ROLE_READ,
    KEY_ROLE_MEMBER,
    KEY_ROLE_ADMIN,
};

struct key_record {
    int64_t seq;
    char id[ID_SIZE];
    char name[KEY_NAME_SIZE];
    enum key_role role;
    uint8_t hash[KEY_HASH_SIZE];
    int64_t created_at;
    int64_t expires_at; /* 0: never */
};

typedef int (*key_visit_fn)(void *arg, const struct key_record *key);

const char *key_role_name(enum key_role role);
int key_role_find(const char *name, enum key_role *ret_role);

int store_key_insert(struct store *store, const struct key_record *key, struct error *err)
    _must_check_;
/* Of living (not revoked) keys: 1, 0 or -errno. Expired ones are found. */
int store_key_find_hash(struct store *store,
                        const uint8_t hash[KEY_HASH_SIZE],
                        struct key_record *ret_key,
                        struct error *err) _must_check_;
int store_key_get(struct store *store,
                  const char *id,
                  struct key_record *ret_key,
                  struct error *err) _must_check_;
/* 1 when it was living, 0 when there is none, -errno. */
int store_key_revoke(struct store *store, const char *id, int64_t now, struct error *err)
    _must_check_;
/* Living keys, newest first. */
int store_key_list(struct store *store,
                   int64_t before_seq,
                   int64_t limit,
                   key_visit_fn visit,
                   void *arg,
                   struct error *err) _must_check_;
/* The number of living admin keys that never expire or expire after now. */
int store_key_count_admins(struct store *store, int64_t now, struct error *err) _must_check_;
