"""CTC on speech with lhotse's bucketing sampler; the corpus is spoken by espeak-ng (the extra "synthetic")."""

import contextlib
import tempfile

import torch
from lhotse import CutSet
from lhotse.dataset import BucketingSampler
from lhotse.kaldi import load_kaldi_data_dir
from torch import nn
from torch.utils.data import DataLoader, Dataset

from roundelay.corpora.synthetic.generator import make_corpus

EPOCHS, ACCUMULATE, CHARS = 8, 2, " abcdefghijklmnopqrstuvwxyz'"


class Speech(Dataset):
    def __getitem__(self, cuts):
        waves, window = [torch.from_numpy(cut.load_audio()[0]) for cut in cuts], torch.hann_window(400)
        made = [torch.stft(wave, 512, 160, 400, window, return_complex=True).abs().T[::3, :160] for wave in waves]
        texts = [[CHARS.index(char) + 1 for char in cut.supervisions[0].text.lower()] for cut in cuts]
        lengths = torch.tensor([len(each) for each in made]), torch.tensor([len(each) for each in texts])
        targets = torch.tensor([code for text in texts for code in text])
        return nn.utils.rnn.pad_sequence(made, batch_first=True).add(1e-3).log() / 4, targets, *lengths


class Recognizer(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.lstm = nn.LSTM(160, width, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, len(CHARS) + 1)

    def forward(self, features, *labels):
        return nn.functional.ctc_loss(self.head(self.lstm(features)[0]).log_softmax(2).transpose(0, 1), *labels)


with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    make_corpus(".", hours=0.03)
    cuts = CutSet.from_manifests(*load_kaldi_data_dir("train", 16000)[:2])
    torch.manual_seed(0)
    model = Recognizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = BucketingSampler(cuts, max_duration=12, num_buckets=3, shuffle=True, rank=0, world_size=1)
    loader = DataLoader(Speech(), sampler=sampler, batch_size=None)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            (model(*batch) / ACCUMULATE).backward()
            if (number + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
    losses = [model(*batch).item() for batch in loader]
    print(f"loss {sum(losses) / len(losses):.4f}")
