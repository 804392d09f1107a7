/* A pretended machine as hwloc's XML: packages of cores of threads, with PCI devices near them. */
#ifndef TR_TEST_TRAINER_MACHINE_H
#define TR_TEST_TRAINER_MACHINE_H

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int package;
    const char *id; /* 0000:3b:00.0 */
} machine_gpu;

/* `synthetic`: as hwloc takes it, beginning with pack:N. NULL on failure; freed by the caller. */
static inline char *machine_xml(const char *synthetic, int ngpus, const machine_gpu *gpus)
{
    hwloc_topology_t t;
    char *xml = NULL, *out = NULL;
    int nbytes;
    size_t size;
    if (hwloc_topology_init(&t) != 0) return NULL;
    if (hwloc_topology_set_synthetic(t, synthetic) != 0 || hwloc_topology_load(t) != 0 ||
        hwloc_topology_export_xmlbuffer(t, &xml, &nbytes, 0) != 0)
        goto out;
    FILE *to = open_memstream(&out, &size);
    int package = -1;
    for (char *line = strtok(xml, "\n"); line; line = strtok(NULL, "\n")) {
        /* the export is indented: what a package holds ends where its own depth comes again */
        if (strncmp(line, "    </object>", 13) == 0 && package >= 0)
            for (int g = 0; g < ngpus; g++)
                if (gpus[g].package == package)
                    fprintf(to,
                            "<object gp_index=\"%d\" type=\"PCIDev\" pci_busid=\"%s\" "
                            "pci_type=\"0302 [10de:2330] [0000:0000] a1\" "
                            "pci_link_speed=\"0\"/>\n",
                            1000000 + g, gpus[g].id);
        package += strncmp(line, "    <object type=\"Package\"", 26) == 0;
        fprintf(to, "%s\n", line);
    }
    fclose(to);
out:
    if (xml) hwloc_free_xmlbuffer(t, xml);
    hwloc_topology_destroy(t);
    return out;
}

#endif
