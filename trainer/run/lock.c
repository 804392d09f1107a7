#include "trainer/run/lock.h"

#include <errno.h>
#include <unistd.h>

#include "runtime/base/file.h"

tr_status tr_lock_take(const char *path, const char *what, int *fd, bool *made, bool *again)
{
    struct stat status;
    int at;
    *again = false;
    tr_status st = tr_file_open(path, O_RDWR | O_CREAT | O_EXCL, TR_IO, &at, NULL);
    const bool is_new = st == TR_OK;
    if (!is_new && errno == EEXIST) st = tr_file_open(path, O_RDWR, TR_IO, &at, NULL);
    if (st != TR_OK) {
        *again = errno == ENOENT;
        return *again ? TR_OK : st;
    }
    if (!tr_file_lock(at)) {
        close(at);
        return TR_FAIL(TR_USAGE, "%s is in use by another running job", what);
    }
    *again = fstat(at, &status) == 0 && status.st_nlink == 0;
    if (*again) {
        close(at);
        return TR_OK;
    }
    *fd = at;
    *made = is_new;
    return TR_OK;
}
