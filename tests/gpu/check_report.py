#!/usr/bin/env python3
"""The time and the memory of tests/gpu/run: a part gets its share and what those before it left; a part that time cut
short is gone on with by the next call, a whole one is not run again. And what it makes of numbers, and kernel_table.py of
PTX: planted ones here.

    tests/gpu/check_report.py [CUDA_BENCH_GPU]      also the bytes of two layers of ResNet-50 and the flops of GPT-2 beside sums by hand
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import check_kernels
import kernel_table
import kernels
import measure
import report as reports
import speed

HERE = pathlib.Path(__file__).resolve().parent
BENCH = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None


class Processes(unittest.TestCase):
    def test_hung(self):
        """What a program that hangs had said is not lost."""
        with self.assertRaises(subprocess.TimeoutExpired) as caught:
            reports.run(["sh", "-c", "echo Segmentation fault; sleep 60"], seconds=5)
        self.assertEqual(caught.exception.output, "Segmentation fault\n")


class Parts(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.addCleanup(setattr, reports, "time", reports.time)
        reports.time = self  # its monotonic()

    def monotonic(self):
        return self.now

    def part(self, report, name, share, items, cost):
        """Of so many items those for which there is time; how many seconds there were."""
        seen, ran = [], []

        def work():
            seen.append(round(report.left()))
            for item in items:
                if report.passed_before(item):
                    continue
                if report.left() < cost:
                    report.skip(item, "no time left")
                    continue
                self.now += cost
                ran.append(item)
                report.say("PASS", item, f"{name} {item}")

        report.run_part(name, share, work)
        return seen, ran

    def test_time(self):
        report = reports.Report(100)
        self.assertEqual(self.part(report, "a", 40, "xy", 5), ([40], ["x", "y"]))
        self.assertEqual(self.part(report, "b", 30, "xyz", 25), ([60], ["x", "y"]))
        self.assertEqual(self.part(report, "c", 30, "x", 8), ([40], ["x"]))
        self.assertEqual(self.part(report, "d", 0, "x", 40), ([32], []))
        self.assertEqual(report.done, ["a", "c"])
        self.assertEqual(report.not_shown("abcd"), ["b", "d"])

    def test_going_on(self):
        first = reports.Report(100)
        self.part(first, "a", 50, "x", 5)
        self.part(first, "b", 10, "xyz", 25)
        self.assertEqual(first.done, ["a"])
        kept = json.loads(json.dumps([first.rows, first.done, first.markdown]))
        second = reports.Report(100)
        second.go_on(*kept)
        self.assertEqual(second.done, ["a"])
        self.assertEqual(self.part(second, "b", 100, "xyz", 25), ([100], ["z"]))
        self.assertEqual(second.done, ["a", "b"])
        self.assertEqual(second.rows, [("a", "x", "PASS", "a x"), *(("b", i, "PASS", f"b {i}") for i in "xyz")])
        self.assertFalse(second.not_shown("ab"))


def op(name, layer, us, kernel="own", nbytes=0, flops=0, shape="8x8", dtype="bfloat16", choice=""):
    return {"op": name, "layer": layer, "kernel": kernel, "choice": choice, "shape": shape, "type": dtype, "flops": flops,
            "bytes": nbytes, "us": us}


class Numbers(unittest.TestCase):
    rows = [op("conv2d", "a", 300.0, "cuDNN engine 7", 335e6, 989e6), op("conv2d", "b", 100.0, "cuDNN engine 7", 335e6, 989e6),
            op("conv2d", "c", 50.0, "cuDNN engine 9", 0, 49450e6), op("linear", "d", 150.0, "cuBLASLt", 1, 1, "8x10",
            "float32", "algorithm 21, tile 20, stages 17, split 2"), op("relu", "e", 400.0, nbytes=670e6, flops=1),
            op("update", "", None, nbytes=1e9)]

    def test_parse(self):
        text = "warning: no\n" + json.dumps(self.rows[0]) + "\n{broken\n[1]\n7\n" + json.dumps(self.rows[5]) + "\n"
        self.assertEqual(measure.parse(text), [self.rows[0], self.rows[5]])

    def test_longest(self):
        self.assertEqual(measure.longest(self.rows), [
            ("conv2d: cuDNN engine 7", "8x8", 2, "400.0", "40.0 %", "200.0", "bytes", "0.50"),
            ("relu: own", "8x8", 1, "400.0", "40.0 %", "200.0", "bytes", "0.50"),
            ("linear: cuBLASLt (algorithm 21, tile 20, stages 17, split 2)", "8x10", 1, "150.0", "15.0 %", "0.0", "bytes",
             "0.00"),
            ("conv2d: cuDNN engine 9", "8x8", 1, "50.0", "5.0 %", "50.0", "flops", "1.00")])
        many = [op(f"op{i}", "", float(i)) for i in range(100)]
        found = measure.longest(many)
        self.assertEqual([r[3] for r in found], [f"{i}.0" for i in range(99, 69, -1)])
        self.assertEqual(measure.longest([]), [])

    def test_choices(self):
        self.assertEqual(measure.choices(self.rows), [
            ("conv2d", "8x8", "cuDNN engine 7", 2, "a"), ("conv2d", "8x8", "cuDNN engine 9", 1, "c"),
            ("linear", "8x10", "cuBLASLt, algorithm 21, tile 20, stages 17, split 2", 1, "d")])

    def test_traffic(self):
        found = measure.traffic(self.rows)
        self.assertEqual(found[0], ("update", "own", 1, "1.00", "0.0", "0.30"))
        self.assertEqual(found[1][:4], ("conv2d", "cuDNN engine 7", 2, "0.67"))
        self.assertEqual(found[-1][:4], ("all", "", 6, "2.34"))

    def test_peak(self):
        for device, peak, of in (("NVIDIA H200 (sm_90), CUDA 13.0", 989, "H200's data sheet"), ("NVIDIA H100 PCIe (sm_90)", 756,
                                 "H100 PCIe's data sheet"), ("NVIDIA X1 (sm_99)", 989, "the fastest product of this step")):
            rate, name = measure.device_peak(device, self.rows)
            self.assertEqual((round(rate / 1e12), name), (peak, of))
        self.assertIsNone(measure.device_peak("NVIDIA X1 (sm_99)", self.rows[4:]))

    def test_share(self):
        self.assertEqual(measure.share([*self.rows, op("relu.grad", "e", 100.0)], "relu"), 500 / 1100)
        self.assertEqual(measure.share([], "relu"), 0)

    def test_mfu(self):
        gpt = speed.Speed(speed.GPT2, False, 14e12, 124439808, (1e15, "hearsay"))
        self.assertEqual(gpt.row("it", 28.0, "1.000", 2), ("it", "28.00", "585143", "50.0 %", "50.3 %", "1.000", "2.0"))
        self.assertEqual(gpt.row("it", 28.0, "", 2, 32)[2:5], ("1170286", "100.0 %", "100.6 %"))
        self.assertEqual(gpt.title(), "GPT-2 124M, 1024 tokens, bf16, batch 16; MFU: 14.00 TFLOP a step, 3 times the plan's forward "
                         "pass, at 1000 TFLOP/s by hearsay")
        for flops, peak in ((None, (1e15, "hearsay")), (14e12, None)):
            gpt = speed.Speed(speed.GPT2, False, flops, flops and 124439808, peak)
            self.assertEqual((gpt.row("it", 28.0, "", 2)[3], gpt.title()), ("", "GPT-2 124M, 1024 tokens, bf16, batch 16"))

    def test_busy(self):
        found = speed.by_name({"kernel_share": 0.5, "window_s": 0.002, "longest": [
            {"name": "_Z5first", "calls": 4, "us": 600.0}, {"name": "second", "calls": 1, "us": 50.0}]})
        self.assertEqual([r[1:] for r in found], [(4, "150.0", "60.0 %"), (1, "50.0", "5.0 %")])
        self.assertIn("first", found[0][0])


def ptx(name, *lines):
    return f".visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n{{\n" + "".join(f"\t{x}\n" for x in lines) + "}\n"


class Table(unittest.TestCase):
    LOAD, STORE = "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];", "st.global.wb.v4.u32 [%rd2], {%r1,%r2,%r3,%r4};"
    SIXTEEN = [f"st.global.u16 [%rd{k}], %rs{k};" for k in range(8)]
    COST = {"read_bytes": 2, "write_bytes": 2}

    def test_pieces(self):
        between = [[x, y] for x in ("ld.global.u16 %rs1, [%rd3+2];", "@%p1 bra $L__BB0_1;", "$L__BB0_1:") for y in self.SIXTEEN]
        found = kernel_table.widths(
            ptx("tail", self.LOAD, self.STORE, *sum(between, []), *(f"@%p1 {s}" for s in self.SIXTEEN)) +
            ptx("sums", self.LOAD, self.STORE, *["st.global.f64 [%rd4+8], %fd1;"] * 5) +
            ptx("pair", self.LOAD, self.STORE, *["st.global.f32 [%rd4+4], %f1;"] * 2) +
            ptx("pieces", self.LOAD, *self.SIXTEEN, self.STORE) +
            ptx("halves", self.LOAD, *["st.global.v2.f32 [%rd5], {%f1,%f2};", "add.s64 %rd5, %rd5, 8;"] * 2) +
            ptx("shared", "ld.shared.v4.f32 {%f1,%f2,%f3,%f4}, [%r1];", "st.v4.f32 [%rd2], {%f1,%f2,%f3,%f4};"))
        self.assertEqual(found, {"tail": (16, 16, 16), "sums": (16, 16, 16), "pair": (16, 16, 16), "pieces": (16, 2, 16),
                                 "halves": (16, 8, 8), "shared": (0, 16, 16)})

    def objections(self, *inst):
        """inst: (instance, widest load, narrowest store, widest store)."""
        access = kernel_table.access([("k", i[0], 32, 0, 0, *i[1:]) for i in inst])
        return access, check_kernels.objections("k", self.COST, access, "0")

    def test_types(self):
        scalar = ("<float, 1, true>", 4, 4, 4), ("<bf16, 1, true>", 2, 2, 2)
        self.assertEqual(self.objections(*scalar, ("<float, 4, true>", 16, 16, 16), ("<bf16, 8, true>", 16, 16, 16)),
                         ("16 / 16", []))
        self.assertEqual(self.objections(*scalar, ("<float, 4, true>", 16, 16, 16), ("<bf16, 8, true>", 8, 2, 2)),
                         ("16 / 16, 8 / 2", ["writes 2 bytes at a time, not 16"]))
        self.assertEqual(self.objections(*scalar, ("<float, 4, (act)0>", 16, 16, 16), ("<float, 4, (act)1>", 16, 4, 16)),
                         ("16 / 4-16, 2 / 2", ["writes 2 bytes at a time, not 16"]))
        self.assertEqual(self.objections(("<4>", 16, 16, 16), ("<1>", 4, 4, 4)), ("16 / 16", []))
        self.assertEqual(self.objections(("", 16, 8, 16)), ("16 / 8-16", ["writes 8 bytes at a time, not 16"]))

    def test_stack(self):
        log = "".join(f"ptxas info    : Compiling entry function '{name}' for 'sm_90'\n" + "".join(
            f"ptxas info    : Function properties for {name}\n    {n} bytes stack frame, 0 bytes spill stores\n" for n in stack) +
            f"ptxas info    : Used 32 registers, used 1 barriers{more}\n"
            for name, stack, more in (("a", (0, 40, 8), ", 256 bytes smem"), ("b", (0,), "")))
        self.assertEqual(kernel_table.resources(log), {"a": (32, 40, 256), "b": (32, 0, 0)})


class Others(unittest.TestCase):
    """What racecheck leaves out by a part of the name. A mangled name has in it the file's name and the parameters' types."""
    THEIRS = ("_ZN5cudnn3ops16nchwToNhwcKernelI6__halfS2_fLb0ELb1EEEvNS0_17nchw2nhwc_params_tIT1_EEPKT_PT0_",
              "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_kernel",
              "sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_kernel", "cudnn_generated_fort_native_pointwise_kernel",
              "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1EEEvNS_18cublasSplitKParamsIT5_EEPKT4_",
              "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "ampere_sgemm_128x64_nn", "ampere_scudnn_128x64_relu_small_nn_v1",
              "_ZN7cutlass7Kernel2I58cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2E", "_Z17gemv2T_kernel_valIiffE",
              "_Z23ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", "ncclKernel_Broadcast_RING_LL_Sum",
              "_ZN3cub17CUB_200200_900_NS18DeviceReduceKernel")

    def left_out(self, name):
        return [other for other in kernels.OTHERS if other in name]

    def test_others(self):
        self.assertEqual([name for name in self.THEIRS if not self.left_out(name)], [])

    def test_ours(self):
        count = 0
        for path in map(pathlib.Path, kernel_table.sources()):
            heads = re.findall(r"^[^/\n]*__global__([^{]+)\)\s*\{", path.read_text(), re.M)
            self.assertEqual(len(heads), len(kernel_table.costs(path)), path)
            for head in heads:
                count += 1
                self.assertEqual(self.left_out(f"{path.stem}_cu {head}"), [], f"{path}: {head}")
        self.assertGreater(count, 90)


@unittest.skipUnless(BENCH, "no bench given")
class Bytes(unittest.TestCase):
    """256 images in bfloat16. The plan's sums have batchnorm's few numbers a channel in them, too: up to 1 in 10^4."""

    @classmethod
    def setUpClass(cls):
        done = subprocess.run([BENCH, "plan", HERE.parents[1] / "configs/bench/resnet50.yaml", "device=cuda"],
                              stdout=subprocess.PIPE, text=True, check=True)
        cls.rows = measure.parse(done.stdout)

    def layer(self, name, what):
        return {r["op"]: r[what] for r in self.rows if r["layer"] == name and r["phase"] != "update"}

    def same(self, is_, wanted):
        self.assertEqual(is_.keys(), wanted.keys())
        for name, value in wanted.items():
            self.assertAlmostEqual(is_[name] / value, 1, delta=1e-4, msg=name)

    def test_first_convolution(self):
        x, y, w = 256 * 3 * 224 * 224 * 2, 256 * 64 * 112 * 112 * 2, 64 * 3 * 7 * 7
        self.same(self.layer("conv2d1", "bytes"), {"conv2d": x + 2 * w + y, "conv2d.grad_weight": x + y + 4 * w})
        flops = 2 * 256 * 112 * 112 * w
        self.same(self.layer("conv2d1", "flops"), {"conv2d": flops, "conv2d.grad_weight": flops})

    def test_block(self):
        y, w = 256 * 64 * 56 * 56 * 2, 64 * 64 * 3 * 3
        self.same(self.layer("conv2d3", "bytes"), {
            "conv2d": 2 * y + 2 * w, "conv2d.grad_input": 2 * y + 2 * w, "conv2d.grad_weight": 2 * y + 4 * w})
        self.same(self.layer("batchnorm3", "bytes"), {
            "batchnorm.stats": y,  # reads x
            "batchnorm": 2 * y,  # x, y
            "batchnorm.grad_stats": 4 * y,  # dy, x, y; writes dy where y > 0
            "batchnorm.grad_input": 3 * y})

    def test_partial_sums(self):
        rows = 256 * 56 * 56
        of_a_block = 32 * -(-rows // (32 * 528))  # 32 rows at a time, 528 blocks at most
        parts = 8 * 2 * 64 * -(-rows // of_a_block)
        two = [r for r in self.rows if r["layer"] == "batchnorm3" and r["op"] in ("batchnorm.stats", "batchnorm.grad_stats")]
        self.assertEqual([r["scratch"] for r in two], [parts, parts])
        self.assertEqual(measure.partial_sums(two), 4 * parts)  # of both, written and read

    def test_all(self):
        nbytes = sum(r["bytes"] for r in self.rows if r["op"].startswith("batchnorm"))
        self.assertAlmostEqual(nbytes / 61e9, 1, delta=0.01)
        weights = [r for r in self.rows if r["op"] == "update"]
        self.assertEqual([r["bytes"] for r in weights], [25557040 * 20])  # g; w and the momentum, read and written


@unittest.skipUnless(BENCH, "no bench given")
class Flops(unittest.TestCase):
    """GPT-2's forward pass, from which MFU is: products, scores of the pairs that a causal mask leaves, and of all else little."""

    def test_gpt2(self):
        done = subprocess.run([BENCH, "plan", HERE.parents[1] / "configs/bench/gpt2.yaml", "device=cuda", "train.batch=16",
                               *speed.GPT2.settings[False]], stdout=subprocess.PIPE, text=True, check=True)
        rows = [r for r in measure.parse(done.stdout) if r["phase"] == "forward"]
        tokens, width, places = 16 * 1024, 768, 1024
        products = 2 * tokens * (12 * 12 * width * width + 50257 * width)
        attention = 12 * 16 * 4 * width * places * (places + 1) / 2
        self.assertEqual(sum(r["flops"] for r in rows if r["op"] == "linear"), products)
        self.assertEqual(sum(r["flops"] for r in rows if r["op"] == "attention"), attention)
        self.assertAlmostEqual(sum(r["flops"] for r in rows) / (products + attention), 1, delta=3e-3)
        self.assertAlmostEqual(attention / products, 0.076, delta=5e-4)


if __name__ == "__main__":
    unittest.main()
