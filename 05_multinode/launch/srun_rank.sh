#!/bin/sh
# One task of srun becomes one rank: Slurm's variables, under the names that torchrun gives them.
#
#     srun 05_multinode/launch/srun_rank.sh python 05_multinode/train.py
#
# MASTER_ADDR and MASTER_PORT, where rank 0 listens, have to be set outside, once for all tasks.
set -eu

for name in SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_NODEID SLURM_NNODES \
    MASTER_ADDR MASTER_PORT; do
    if eval "[ -z \"\${$name-}\" ]"; then
        echo "srun_rank.sh: error: $name is not set; job_srun.sbatch shows how to start this" >&2
        exit 2
    fi
done
export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS"
export LOCAL_RANK="$SLURM_LOCALID" LOCAL_WORLD_SIZE="$SLURM_NTASKS_PER_NODE"
export GROUP_RANK="$SLURM_NODEID" GROUP_WORLD_SIZE="$SLURM_NNODES"
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}" # not all cores of the node
exec "$@"
