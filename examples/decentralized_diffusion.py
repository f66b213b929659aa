"""Four experts learn to draw digits without sending each other a byte, and a router joins them.

Alone this script trains one after the other. Under torchrun each process trains one, and no process group is
made; who finishes last finds all files and joins them:

    torchrun --nproc-per-node 5 examples/decentralized_diffusion.py runs/

It prints the held-out error of the velocity: of the experts together, of the likeliest one alone for each
sample, of the experts in another order (which must be worse), and of one model trained with as many
operations as the four.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fewbits.files import load_file, save_file
from fewbits.train import RoutedExperts, integrate_flow, router_loss, velocity_loss

EXPERTS, STEPS, BATCH = 4, 400, 128


class Net(nn.Module):
    """A perceptron of digits (n, 64) and their times (n,)."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(67, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.last = nn.Linear(128, outputs)

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        """Return a velocity, or logits."""
        t = times[:, None]
        found: Tensor = self.last(self.layers(torch.cat([samples, t, (6 * t).sin(), (6 * t).cos()], 1)))
        return found


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Return digits to train on, from -1 to 1, the cluster of each, and held-out digits."""
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    clusters = KMeans(EXPERTS, n_init=4, random_state=0).fit_predict(images[:1400].numpy())
    return images[:1400], torch.from_numpy(clusters).long(), images[1400:]


def trained(part: int) -> Net:
    """Train an expert, or the router where ``part`` is EXPERTS, or one model for all where it is beyond."""
    images, clusters, _ = data()
    torch.manual_seed(part)
    drawn, net = torch.Generator().manual_seed(part), Net(EXPERTS if part == EXPERTS else 64)
    own = (clusters == part).nonzero().view(-1) if part < EXPERTS else torch.arange(len(images))
    size = BATCH // EXPERTS if part < EXPERTS else BATCH
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(STEPS):
        chosen = own[torch.randint(len(own), (size,), generator=drawn)]
        if part == EXPERTS:
            loss = router_loss(net, images[chosen], clusters[chosen], drawn)
        else:
            loss = velocity_loss(net, images[chosen], drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def loaded(folder: Path, part: int) -> Net:
    """Return what :func:`trained` wrote."""
    net = Net(EXPERTS if part == EXPERTS else 64)
    net.load_state_dict(load_file(folder / f"part{part}.safetensors"))
    return net.eval()


def joined(folder: Path) -> None:
    """Print what the experts are worth together."""
    held_out = data()[2]
    *experts, router, alone = (loaded(folder, part) for part in range(EXPERTS + 2))
    models = {
        "experts together": RoutedExperts(experts, router),
        "likeliest expert": RoutedExperts(experts, router, top=1),
        "experts in another order": RoutedExperts([*experts[1:], experts[0]], router),
        "one model": alone,
    }
    for name, model in models.items():
        with torch.no_grad():
            error = float(velocity_loss(model, held_out, torch.Generator().manual_seed(0)))
        print(f"{name:26}{error:.3f}")
    noise = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    for row in integrate_flow(models["experts together"], noise).view(8, 8):
        print("".join(" .:-=+*#%@"[int(x.clamp(-1, 0.99) * 5 + 5)] for x in row))


def main(folder: Path) -> None:
    """Train this process's parts, and join all if they are there."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(rank, EXPERTS + 2, size):
        save_file(trained(part).state_dict(), folder / f"part{part}.safetensors")
    try:
        if len(list(folder.glob("part*.safetensors"))) == EXPERTS + 2:
            (folder / "joined").touch(exist_ok=False)
            joined(folder)
    except FileExistsError:
        pass  # another process was last, too


if __name__ == "__main__":
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
