#!/usr/bin/env bash
#SBATCH --job-name=reproduce --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=16 --requeue --open-mode=append
# A table's rows on a node of a Slurm cluster; a job that is cut off and queued again goes on where it was:
#   sbatch --time 24:00:00 scripts/slurm.sh b2t/table1 --rows "18L-18L/B2T"
cd "${SLURM_SUBMIT_DIR:?start this by sbatch, in the folder of the checkout}"
. scripts/setup.sh
exec fairseq-residuals reproduce "$@" --gpus "$SLURM_GPUS_ON_NODE"
