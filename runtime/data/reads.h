/* Files that data are read from. Local. */
#ifndef TR_DATA_READS_H
#define TR_DATA_READS_H

#include "runtime/config/config.h"

/* Whether `path` is a file that data.train, data.eval or data.predict of the config names, by
 * itself, by a pattern or in a folder of images, and under whatever name: device and inode are
 * compared. The key that names it, "data.train.path", goes to `key`. */
enum { TR_DATA_KEY = 32 };
bool tr_data_reads(const tr_config *c, const char *path, char key[TR_DATA_KEY]);
/* TR_USAGE where it is. */
tr_status tr_data_spare(const tr_config *c, const char *path);
#define TR_READ_ALREADY "%s is what is read: it is not written over"
/* Whether `path` is the data file, or an image in the folder of images. */
bool tr_is_data_file(const char *data, const char *path);

#endif
