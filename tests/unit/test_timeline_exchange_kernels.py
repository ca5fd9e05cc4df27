"""Which kernels exchange data between devices, by names as recordings and sources have them."""

from __future__ import annotations

import pytest

from gpurun.timeline.exchange_kernels import qualified_name
from gpurun.timeline.kernel_groups import kernel_group
from gpurun.timeline.model import Group

EXCHANGES = (
    # NCCL, RCCL
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_ReduceScatter_LD_sum_bf16(ncclSymkDevWorkArgs4K)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
    # oneCCL
    "oneccl_allreduce_pcie<sycl::_V1::ext::oneapi::bfloat16, Rt64_128_PCIE, true, 16>",
    "oneccl_invoke_barrier",
    # HybridEP: its scan computes, see below
    "void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<1, 0>, unsigned short, 12>(int*)",
    "void hybrid_ep::combine_kernel<hybrid_ep::warp_group<1, 0>, 12>(int*)",
    "void hybrid_ep::device_sync_kernel<8>(unsigned int*, unsigned int const*)",
    # MSCCL++, its kernels below NCCL's interface too
    "void mscclpp::megamoe::detail::megaMoe<false>()",
    "void allreduceAllPairs<(Op)0, __half>(__half*, __half*, __half*)",
    "void allreduce7<(Op)0, __half>(__half*, __half*, __half*)",
    "void allgather6<true>(void*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)",
    # NVSHMEM
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int, int)",
    "signal_wait_until_on_stream_kernel(unsigned long*, int, unsigned long)",
    "broadcast32_on_stream_kernel(void*, void const*, unsigned long, int)",
    "void rocshmem::rocshmem_reduce_on_stream_kernel<float, 1>(float*)",
    # DeepEP
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*, int*, long*)",
    "void deep_ep::internode_ll::combine<false, 7168, 9>(void*, void*, int*, void*)",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int)",
    "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvP4int4",
    # pplx-kernels and Triton-distributed
    "void dispatchKernel<10u, true, false>(int*, unsigned long, std::byte*)",
    "void (anonymous namespace)::combineKernel<__nv_bfloat16, __nv_bfloat16, 32ul>(float*)",
    "kernel_dispatch_token_intra_node",
    "kernel_combine_token_inter_node",
    # torch's symmetric memory
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(int**)",
    "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_reduce_kernel<float, 16>()",
    "void (anonymous namespace)::stream_write_two_shot_reduce<float>(float*)",
    "c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*, int)",
    "allToAllV(void*, void*, long*, unsigned long, int)",
    # vLLM, SGLang, dlslime
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
    "_ZN4vllm25cross_device_reduce_2stageI6__halfLi8EEEvPNS_8RankDataE",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>(int)",
    "void dlslime::intranode_alltoall_kernel<8>(signed char*)",
    # FlashInfer
    "void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, __nv_bfloat16>(int*)",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, float>(float*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false>("
    "flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)",
    # TensorRT-LLM
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)",
    "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<__nv_bfloat16, 8>(int)",
    "tensorrt_llm::kernels::moeAllToAllKernel(tensorrt_llm::kernels::FusedMoeCommKernelParam)",
    "void tensorrt_llm::kernels::lamport_style_one_shot_all_reduce_norm_kernel<8, __half, 4>()",
    "void tensorrt_llm::kernels::ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_"
    "lamport<__half, 8>()",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<__nv_bfloat16, 4, true>(int)",
    # Transformer Engine
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, __nv_fp8_e4m3>(int, int)",
    "kuserbuffers_pushsendrecv(int*, int*, int4*)",
    # MORI
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpArgs<int>)",
    "EpCombineInterNodeV1Kernel_bf16",
    # pplx, TurboMind, Triton-distributed and others
    "void a2a_kernels::a2a_dispatch_send_kernel<true>(int)",
    "void turbomind::comm::Allreduce_NVLS_V2<__half, 8>(__half*)",
    "AllToAllNotifyDispatch_Simple_Push(Array<int*, 8>)",
    "all_gather_ll_kernel(signed char*, signed char**, int**)",
    "_reduce_scatter_kernel_0d1d2d",
)
COMPUTES = (
    # torch
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, int>>(int)", "reduction"),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "elementwise"),
    ("void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)", "elementwise"),
    ("void at::native::sum_all_reduce<float>(float*)", "reduction"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int)", "elementwise"),
    ("void at::native::elementwise_kernel<128, 4, deep_ep::Op>(int, deep_ep::Op)", "elementwise"),
    ("void split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)", "elementwise"),
    ("triton_poi_fused_all_gather_into_tensor_wait_tensor_mul_3", "elementwise"),
    ("triton_red_fused_reduce_scatter_tensor_0", "reduction"),
    # JAX, SGLang and others: names with single words of an exchange
    ("loop_broadcast_fusion", "other"),
    ("mul_broadcast_2d_kernel", "other"),
    ("resize_on_stream_kernel(unsigned char const*, unsigned char*, int, int)", "other"),
    ("input_reduce_fusion_1", "reduction"),
    ("void dispatch_elementwise_add<float>(float*)", "elementwise"),
    (
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>::Policy600>(float*)",
        "reduction",
    ),
    # attention: its combining belongs to it
    (
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>()",
        "attention",
    ),
    ("void pytorch_flash::flash_bwd_convert_dq_kernel<int>()", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<int, 4, 2>>(int)", "attention"),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausal", "attention"),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(int)0, 2u, 1u, 8u>(int)", "attention"),
    ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<int>(int)", "attention"),
    ("void flashinfer::MergeStatesKernel<8, 16, 4, __half>(int)", "attention"),
    # FlashInfer's other kernels
    ("void flashinfer::norm::RMSNormKernel<8u, __half>(__half*, __half*)", "norm"),
    ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>(float*)", "reduction"),
    ("void flashinfer::activation::act_and_mul_kernel<__half>(__half*)", "other"),
    # experts, inside a device
    ("void moe_permute_kernel<__nv_bfloat16>(int)", "other"),
    ("void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>(float const*)", "reduction"),
    ("void tensorrt_llm::kernels::finalizeMoeRoutingKernel<__half>(__half*)", "other"),
    ("void expandInputRowsKernel<__nv_bfloat16>(int)", "other"),
    ("void hybrid_ep::scan<512, 16, 128>(bool const*, hybrid_ep::tmp_state_t*)", "other"),
    ("void moe_align_block_size_kernel<int>(int*)", "other"),
    # a product that waits for its operands, a reduction inside a block, copies before an exchange
    ("void bytedance::flux::allgather_gemm_kernel<int>()", "matmul"),
    ("void blockAllReduceSum<float>(float*)", "reduction"),
    ("void layernorm_cta_all_reduce<float>(float*)", "norm"),
    ("horovod::common::batched_memcpy_k(void**, void**, unsigned long*)", "other"),
    ("void consumer<deep_ep::Token, ncclComm>(nvshmem_team_t)", "other"),
)


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_kernel_that_exchanges_data_is_communication(name: str) -> None:
    assert kernel_group(name) is Group.COMMUNICATION


@pytest.mark.parametrize(("name", "group"), COMPUTES)
def test_a_kernel_that_computes_is_of_its_own_group(name: str, group: str) -> None:
    assert kernel_group(name).value == group


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("void a::b::own<c::d<int>, (e)1>(f::g<h>*)", ["a", "b", "own"]),
        ("std::enable_if<!(true), void>::type a::own<int>(int)", ["a", "own"]),
        ("void (anonymous namespace)::own<int>(int)", ["own"]),
        ("void a::<unnamed>::own(int)", ["a", "own"]),
        ("own.kd", ["own.kd"]),
        ("_ZN1a3ownIiEEvi", ["a", "own"]),
        ("_Z3ownPi", ["own"]),
        ("", [""]),
    ],
)
def test_the_own_name_is_without_types(name: str, parts: list[str]) -> None:
    assert qualified_name(name) == parts
