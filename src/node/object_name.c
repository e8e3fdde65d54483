#include "node/object_name.h"

#include <string.h>

bool object_name_is_valid(const char *name)
{
    size_t n = strnlen(name, OBJECT_NAME_SIZE);
    unsigned int slashes = 0;
    bool begins = true;

    if (n == 0 || n >= OBJECT_NAME_SIZE) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '-' || c == '.';

        if (c == '/' && !begins && slashes == 0) {
            slashes++;
            begins = true;
            continue;
        }
        if (!plain || (begins && c == '.')) {
            return false;
        }
        begins = false;
    }
    return !begins;
}
