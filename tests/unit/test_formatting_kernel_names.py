"""Kernels are named so that a reader knows them, and not by their C++ signatures."""

from __future__ import annotations

import time

import pytest

from gpurun.formatting.kernel_names import MOST_CHARACTERS, short_kernel_name


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        (
            "ncclDevKernel_AllReduce_Sum(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn>(T1::Params)",
            "Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn>",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
            "(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::"
            "FusedSgdMathFunctor<float, 3>, double>(at::native::TensorListMetadata<3>, double)",
            "multi_tensor_apply_kernel<FusedSgdMathFunctor>",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::"
            "gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>>(at::TensorIteratorBase &)"
            "::[lambda(int) (instance 1)]>(int, T3)",
            "elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void softmax_warp_forward<float, 5, false>(float*)", "softmax_warp_forward"),
        (
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::"
            "native::MeanOps<float, float>, unsigned int>>(T3)",
            "reduce_kernel<MeanOps>",
        ),
        (
            "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::"
            "TensorListMetadata<(int)2>, at::native::<unnamed>::UnaryOpFunctor<float, (int)2>, "
            "at::native::Sqrt<float>>(T1, T2, T3...)",
            "multi_tensor_apply_kernel<UnaryOpFunctor, Sqrt>",
        ),
        ("std::enable_if<!(false), void>::type gemvx::kernel<int, float>(T1)", "kernel"),
        ("void torn_off<", "torn_off"),
        ("", ""),
    ],
)
def test_the_kernel_and_what_it_computes_are_named(signature: str, name: str) -> None:
    assert short_kernel_name(signature) == name


def test_a_long_name_is_cut_off_visibly() -> None:
    name = short_kernel_name("triton_poi_fused_" + "add_" * 60)
    assert len(name) == MOST_CHARACTERS
    assert name.endswith("…")


def test_a_name_of_megabytes_is_looked_at_by_its_beginning() -> None:
    """Twice as much takes at most twice as long: a search for namespaces took the square of it."""
    taken = []
    for length in (200_000, 3_200_000):
        began = time.process_time()
        assert short_kernel_name("n" * length).endswith("…")
        taken.append(time.process_time() - began)
    assert taken[1] < 16 * taken[0] + 1
