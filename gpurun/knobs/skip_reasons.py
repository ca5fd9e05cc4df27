"""Why a knob is skipped, where the launcher and the user's process may both find the reason."""

from __future__ import annotations

SCRIPT_COMPILES = "the script compiles by itself"
COPIES_MODEL = "DataParallel calls copies of the model"
COPIES_STAY_PLAIN = f"{COPIES_MODEL}, which do not stay compiled"
NO_DOUBLE_BACKWARD = "create_graph=True: torch.compile supports no double backward"
MODEL_COMPILED = "the model is compiled"
NO_FOLDED_PAIR = (
    "no normalisation stands right behind a convolution or linear layer in an nn.Sequential"
)
NOT_FOLDED = {"compile": SCRIPT_COMPILES, "data_parallel": COPIES_MODEL}
"""By trait of the script, why nothing is folded."""
NOT_ON_GPU = "the model is not on a GPU"
OWN_PRECISION = {
    "autocast": "the script autocasts itself",
    "grad_scaler": "the script scales its gradients itself",
}
"""By trait of the script, why its forward is not cast."""
HALF_PARAMETERS = "the model holds half-precision parameters"
EMULATED_BFLOAT16 = "this processor only emulates bfloat16"
