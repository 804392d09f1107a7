"""Hugging Face's models of several inputs, ids of two kinds and lengths among them (BERT), of grouped heads (Llama), of patches and a
class token (ViT), and GPT-2, on the stand-in: logits and a step are torch's there too."""
import harness
import test_transformer
from gpu import GpuCase


class GpuTransformer(GpuCase, test_transformer.Transformer):
    test_gpt2 = None  # test_gpt2_saved is the same model

    def command(self, config, *arguments, **how):
        if config in ("check", "import"):  # on the host
            return harness.Case.command(self, config, *arguments, **how)
        device = ("device=cuda", "run.deterministic=on")
        return harness.Case.command(self, config, *arguments, *device, **how)


if __name__ == "__main__":
    harness.main()
