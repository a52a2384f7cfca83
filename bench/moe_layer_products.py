"""What bounds an MoE layer that is made of library products, for bench/moe_layer_torch.py and bench/step_ceiling.py: its six
batched products (cuBLAS, torch.bmm) with equal loads, one after the other in a CUDA graph, and nothing else: no router,
no index, no activation, no sum over a token's rows.
"""
import torch

GRADIENTS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Products:
    """Operands of one layer whose experts all have the same number of rows, in bf16."""

    def __init__(self, width, expert_width, experts, top_k, tokens, device="cuda"):
        torch.manual_seed(1)

        def normal(*shape):
            return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 1)

        rows = tokens * top_k // experts
        self.x_ErD, self.d_y_ErD = normal(experts, rows, width), normal(experts, rows, width)
        self.up_Er2F, self.hidden_ErF = normal(experts, rows, 2 * expert_width), normal(experts, rows, expert_width)
        self.h_Er2F, self.d_hidden_ErF = torch.empty_like(self.up_Er2F), torch.empty_like(self.hidden_ErF)
        self.y_ErD, self.d_x_ErD = torch.empty_like(self.x_ErD), torch.empty_like(self.x_ErD)
        self.w_up_E2FD = normal(experts, 2 * expert_width, width)
        self.w_down_EDF = normal(experts, width, expert_width)

    def forward(self):
        torch.bmm(self.x_ErD, self.w_up_E2FD.mT, out=self.h_Er2F)
        torch.bmm(self.hidden_ErF, self.w_down_EDF.mT, out=self.y_ErD)

    def backward(self, gradients):
        """`gradients`: dtype of weight gradients."""
        torch.bmm(self.d_y_ErD, self.w_down_EDF, out=self.d_hidden_ErF)
        torch.bmm(self.d_y_ErD.mT, self.hidden_ErF, out_dtype=gradients)
        torch.bmm(self.up_Er2F, self.w_up_E2FD, out=self.d_x_ErD)
        torch.bmm(self.up_Er2F.mT, self.x_ErD, out_dtype=gradients)


def measure_products(shape, tokens, graph_ms, repeats):
    """Times of forward and of forward and backward, for each dtype of weight gradients."""
    products = Products(*shape, tokens)
    width, expert_width, _, top_k = shape
    flops = 6 * tokens * top_k * width * expert_width
    results = []
    for name, gradients in GRADIENTS.items():
        def both():
            products.forward()
            products.backward(gradients)

        both_ms = graph_ms(both, lambda: None, repeats)
        forward_ms = graph_ms(products.forward, lambda: None, repeats)
        results.append({
            "path": f"products {name}", "graph_forward_ms": forward_ms, "graph_forward_backward_ms": both_ms,
            "graph_forward_tflops": flops / forward_ms * 1e-9, "graph_forward_backward_tflops": 3 * flops / both_ms * 1e-9})
    return results
