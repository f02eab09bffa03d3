"""A LightningModule: scheduler, accumulation, clipping, validation and checkpoints are the Trainer's."""

import tempfile

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 6, 32


class Sines(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss_of(self, batch):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, index):
        loss = self.loss_of(batch)
        self.log("train", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    pl.seed_everything(0, verbose=False)
    inputs = torch.randn(2048 + 512, 8)
    targets = inputs.sin().sum(1, keepdim=True) + 0.3 * torch.randn(len(inputs), 1)
    data, held_out = TensorDataset(inputs[:2048], targets[:2048]), TensorDataset(inputs[2048:], targets[2048:])
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, gradient_clip_val=1.0, accumulate_grad_batches=2,
        default_root_dir=tempfile.mkdtemp(), logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Sines(), DataLoader(data, BATCH), DataLoader(held_out, 256))
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss']:.4f}")
