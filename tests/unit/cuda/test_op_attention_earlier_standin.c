/* links: trireme_cpu trireme_plan
 * The same by a program whose code is for devices without matrix instructions: all types by
 * multiply-adds. */
#define MIRROR_WORKSPACE 0 /* no plan of cuDNN's */
#include "tests/unit/cuda/mirror.h"

#pragma push_macro("main")
#undef main
#define main attention_of_earlier_code
#include "tests/unit/cpu/test_attention.c"
#pragma pop_macro("main")

int main(void)
{
    setenv("FAKEGPU_CODE", "75", 1);
    return attention_of_earlier_code();
}
