#include "cli/guess.h"

#include <stdint.h>
#include <string.h>

#define MAX_LENGTH   24
#define MAX_DISTANCE 2

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* One edit for every three letters: of a short word another word is soon made. */
static size_t allowed(size_t n)
{
    return least(n / 3, MAX_DISTANCE);
}

size_t guess_distance(const char *known, const char *given, size_t n)
{
    size_t rows[3][MAX_LENGTH + 1];
    size_t length = strlen(known);

    if (length > MAX_LENGTH || n > MAX_LENGTH) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= n; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= length; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i - 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            row[j] = least(above[j - 1] + (known[i - 1] == given[j - 1] ? 0 : 1),
                           least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && known[i - 1] == given[j - 2] && known[i - 2] == given[j - 1]) {
                row[j] = least(row[j], rows[(i - 2) % 3][j - 2] + 1);
            }
        }
    }
    return rows[length % 3][n] <= allowed(n) ? rows[length % 3][n] : SIZE_MAX;
}

const char *guess_synonym(const char *word)
{
    static const struct {
        const char *word;
        const char *verbs;
    } synonyms[] = {
        {"delete", "rm"},
        {"remove", "rm"},
        {"destroy", "rm"},
        {"stop", "pause or suspend"},
        {"start", "wake or create"},
        {"resume", "wake"},
        {"unpause", "wake"},
        {"snapshot", "checkpoint"},
        {"restore", "rollback"},
        {"inspect", "show"},
        {"top", "stats"},
        {"list", "ls"},
        {"clone", "fork"},
        {"ssh", "shell"},
        {"copy", "cp"},
        {"images", "templates"},
        {"new", "create"},
    };

    for (size_t i = 0; i < sizeof(synonyms) / sizeof(synonyms[0]); i++) {
        if (strcmp(synonyms[i].word, word) == 0) {
            return synonyms[i].verbs;
        }
    }
    return NULL;
}
