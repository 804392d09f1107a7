"""train.groups: momentum, betas and eps by group, trained again in numpy, and told by `trainer plan`."""
import json

from harness import main
from line import Adamw, LineCase, Sgd


class Groups(LineCase):
    def check(self, optimizer, group, weight, bias, *options, ranks=2):
        start = self.start()
        made = iter([weight, bias])
        expected = self.again(start, lambda: next(made))
        self.line(f"train.groups=[{{match: head.bias, {group}}}]", "--force", *options, optimizer=optimizer, ranks=ranks)
        self.compare(expected)

    def test_momentum(self):
        for mine, ranks in ((0.5, 0), (0, 3)):
            self.check("{sgd: {lr: 0.02, momentum: 0.9}}", f"momentum: {mine}", Sgd(0.02, 0.9), Sgd(0.02, mine), ranks=ranks)

    def test_nesterov_and_rate(self):
        self.check("{sgd: {lr: 0.02, momentum: 0.9, nesterov: true}}", "momentum: 0.3, lr: 0.05",
                   Sgd(0.02, 0.9, True), Sgd(0.05, 0.3, True))

    def test_betas(self):
        """Corrections of the moments' start are by the group's betas."""
        for options in ((), ("run.collectives=mpi", "run.shard_optimizer=on")):
            self.check("{adamw: {lr: 0.02, weight_decay: 0}}", "beta1: 0.5, beta2: 0.9, eps: 0.001",
                       Adamw(0.02, weight_decay=0), Adamw(0.02, 0.5, 0.9, 1e-3, 0), *options, ranks=3)

    def test_told(self):
        self.line("train.groups=[{match: head.bias, momentum: 0.5, weight_decay: 0}]", "--force", steps=1,
                  optimizer="{sgd: {lr: 0.02, momentum: 0.9}}")
        out = self.tool("plan", "run.yaml", "train.groups=[{match: head.bias, momentum: 0.5, weight_decay: 0}]",
                        "train.freeze=head.weight")
        self.assertRegex(out, r"group 0 +3 parameters in 1 array, weight_decay 0, momentum 0\.5")
        self.assertRegex(out, r"frozen +15 parameters")

    def test_inspected(self):
        """The file's own config says which parameters were frozen, and which group trained them."""
        self.line("train.groups=[{match: head.b*, momentum: 0.5, lr: 0.01}]", "--force", "train.freeze=head.weight", steps=1,
                  optimizer="{sgd: {lr: 0.02, momentum: 0.9}}")
        out = self.tool("inspect", "run/model.h5")
        self.assertRegex(out, r"head/weight .* frozen\n")
        self.assertRegex(out, r"head/bias .* group 0\n")
        self.assertIn("  frozen: 1 array, 15 values\n", out)
        self.assertRegex(out, r"  group 0: 1 array, 3 values: .*match: head\.b\*.*lr: 0\.01")
        trained = json.loads(self.tool("inspect", "run/model.h5", "--json"))["trained"]
        self.assertEqual(trained["frozen"], ["/model/params/head/weight"])
        self.assertEqual(trained["groups"][0]["arrays"], ["/model/params/head/bias"])
        options = trained["groups"][0]["options"]
        self.assertEqual((options["match"], options["momentum"], options["lr"]), ("head.b*", "0.5", "0.01"))
        self.line("--force", steps=1)
        self.assertNotIn("train.groups", self.tool("inspect", "run/model.h5"))
        self.assertEqual(json.loads(self.tool("inspect", "run/model.h5", "--json"))["trained"], {"frozen": [], "groups": []})

    def test_refused(self):
        said = self.line("train.groups=[{match: head.bias, momentum: 0.5}]", optimizer="{sgd: {lr: 0.02}}", status=2)
        self.assertIn("train.groups.0.momentum: train.optimizer.momentum is 0", said)
        said = self.line("train.groups=[{match: head.bias, alpha: 0.5}]", optimizer="{sgd: {lr: 0.02}}", status=2)
        self.assertIn("train.groups.0.beta2: train.optimizer has none", said)


if __name__ == "__main__":
    main()
