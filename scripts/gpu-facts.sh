#!/usr/bin/env bash
# Facts of a machine with a GPU that decide how Forebay works there: driver, libraries, memory, limits.
# Every line stands alone: what is missing is said and stops nothing. Called by scripts/gpu.sh with a Python.
set -uo pipefail
python=${1:-python3}

fact() { # name, command …
    local name=$1
    shift
    printf '\n# %s\n' "$name"
    timeout 20 "$@" 2>&1 | head -n 40 || true
}

fields=name,uuid,driver_version,vbios_version,memory.total,memory.used,persistence_mode,compute_mode
fields+=,mig.mode.current,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.video,clocks.mem
fact 'GPU' nvidia-smi --query-gpu="$fields" --format=csv
fact 'engines in use' nvidia-smi dmon -s u -c 1
fact 'confidential computing' nvidia-smi conf-compute -f
fact 'devices' bash -c 'ls -l /dev/nvidia* /dev/nvidia-caps 2>&1'
fact 'driver libraries' bash -c "ldconfig -p | grep -E 'nvcuvid|libcuda[.]|nvidia-ml|nvjpeg|libnppi|avcodec'"
fact 'nvJPEG of the toolkit' bash -c 'ls -l /usr/local/cuda*/lib64/libnvjpeg* 2>&1'
fact 'sanitizer' bash -c 'command -v compute-sanitizer; ls -l /usr/local/cuda*/bin/compute-sanitizer 2>&1'
fact 'system' bash -c 'uname -a; nproc; grep -m 1 "model name" /proc/cpuinfo; cat /etc/os-release | head -n 2'
fact 'memory' bash -c 'grep -E "MemTotal|MemAvail|Huge|Shmem" /proc/meminfo'
fact 'huge pages' bash -c 'grep -H . /sys/kernel/mm/transparent_hugepage/{enabled,shmem_enabled}'
fact 'folders' df -h /dev/shm /tmp .
fact 'limits' bash -c 'ulimit -l -n -u; grep -H . /proc/sys/kernel/io_uring_disabled /proc/sys/vm/overcommit_memory'
fact 'capabilities' bash -c 'env | grep -E "^(NVIDIA|CUDA|XLA|LD_|FOREBAY)"; grep Cap /proc/self/status'
fact 'Python' "$python" - <<'PYTHON'
import importlib
import importlib.metadata
import pathlib
import platform
import sys

print(platform.python_version(), sys.executable)
for name in (
    "torch", "torchvision", "torchcodec", "jax", "jax-cuda13-plugin", "numpy", "pillow", "pytest",
    "pytest-timeout", "cupy-cuda13x", "tqdm", "webdataset", "nvidia-nvimgcodec-cu13",
    "nvidia-nvjpeg", "nvidia-cuda-nvrtc", "forebay",
):
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "absent")
for name in ("torch", "torchvision", "torchcodec", "nvidia.nvimgcodec", "forebay"):
    try:
        module = importlib.import_module(name)
        print(name, getattr(module, "__file__", ""))
    except Exception as error:
        print(name, "does not import:", " ".join(f"{type(error).__name__}: {error}".split())[:300])

# Copies of nvJPEG: Forebay opens torchvision's, then those of NVIDIA's packages, then the toolkit's.
for folder in dict.fromkeys(sys.path):
    for pattern in ("torchvision.libs/libnvjpeg*", "nvidia/*/lib/libnvjpeg*"):
        for file in sorted(pathlib.Path(folder or ".").glob(pattern)):
            print(file, file.stat().st_size)

try:
    import torch

    print(torch.version.cuda, torch.cuda.get_device_properties(0), torch.cuda.mem_get_info())
except Exception as error:
    print("torch sees no GPU:", " ".join(f"{type(error).__name__}: {error}".split())[:300])
PYTHON
fact 'Forebay' forebay doctor
exit 0
