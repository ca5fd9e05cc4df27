"""Activity of a GPU's units, from NVML's GPM counters (Hopper and later)."""

from __future__ import annotations

from typing import Any

from gpurun.measure.visible_gpus import ask, error_text

GPM_METRICS = {"graphics": 1, "sm": 2, "tensor": 5, "dram": 10}
"""NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL, in percent."""


class GpmActivity:
    """Activities of one GPU: means between two samples of its counters.

    `refused`: why a GPU that has these counters does not tell them; None if it does, and for GPUs
    without.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.refused: str | None = None
        self._nvml = nvml
        self._handle = handle
        support = ask(getattr(nvml, "nvmlGpmQueryDeviceSupport", None), handle)
        self._supported = support is not None and bool(support.isSupportedDevice)
        self._before: Any = None
        self._spare: Any = None

    @property
    def supported(self) -> bool:
        """True if this GPU has the counters and tells them."""
        return self._supported

    def since_last(self) -> dict[str, float]:
        """Percent by name of `GPM_METRICS`, without those that the device does not tell."""
        if not self._supported:
            return {}
        try:
            sample = self._spare or self._nvml.nvmlGpmSampleAlloc()
            self._spare = sample
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        except Exception as error:
            self._supported = False
            self.refused = error_text(error)
            return {}
        before, self._before, self._spare = self._before, sample, self._before
        return {} if before is None else self._metrics(before, sample)

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._before, self._spare):
            if sample is not None:
                ask(self._nvml.nvmlGpmSampleFree, sample)

    def _metrics(self, before: Any, after: Any) -> dict[str, float]:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = before, after
        for index, metric in enumerate(GPM_METRICS.values()):
            request.metrics[index].metricId = metric
        try:
            nvml.nvmlGpmMetricsGet(request)
        except Exception as error:
            self.refused = error_text(error)
            return {}
        told = zip(GPM_METRICS, request.metrics, strict=False)
        return {name: float(metric.value) for name, metric in told if metric.nvmlReturn == 0}
