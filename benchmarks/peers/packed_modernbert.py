"""A peer of ModernBERT's pre-training step: transformers' model with the kernels of packed-encoders.

    lambert bench --work pretrain --block modernbert --size base --peer benchmarks.peers.packed_modernbert:training

packed-encoders 0.2 needs CUDA, torch 2.11, transformers below 5.10 and nvidia-cutlass-dsl. It trains float32 weights
under autocast, without padding inside; attention is FlashAttention where that is installed.
"""

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.measure.training import Pass, Step, training_step
from lambert.model.config import EncoderConfig
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.training import peer_inputs, peer_model
from lambert.wings.bench.work import import_peer


def training(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World, kind: str) -> Step:
    """Returns a training step of the packed model, with the weights of Lambert's side. Raises UsageError without the
    package."""
    packed_encoders = import_peer("packed_encoders", "packed-encoders", "packed-encoders")
    model = packed_encoders.pack(peer_model(tuple(batch.targets), encoder).train().to(world.device))
    inputs = peer_inputs(batch, batches.width_of(config, batch), segments=False)
    one = Pass(config.precision, config.accumulate, optimizer=config.optimizer)
    return training_step(one, model, lambda: model(**inputs).loss, world, model.zero_grad)
