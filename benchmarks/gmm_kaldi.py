"""Train monophones with kaldi-hmm-gmm; ``gmm.py`` runs this file in its own virtual environment.

    python gmm_kaldi.py INPUT.npz OUTPUT.npz

Phones and words are numbers from 1, phone 1 is silence.  It imports nothing of Roundelay.
"""

import math
import sys
import time

import kaldi_hmm_gmm as khg
import kaldifst
import numpy as np

LN2 = math.log(2.0)


def lexicon_fst(pronunciations):
    """Kaldi's lexicon: a loop over words, with silence at the start and after each word or not."""
    arc = kaldifst.StdArc
    fst = kaldifst.StdVectorFst()
    start, loop, silence = (fst.add_state() for _ in range(3))
    fst.start = start
    fst.set_final(loop, 0.0)
    fst.add_arc(start, arc(0, 0, LN2, loop))
    fst.add_arc(start, arc(0, 0, LN2, silence))
    fst.add_arc(silence, arc(1, 0, 0.0, loop))
    for word, phones in pronunciations:
        state = loop
        for i, phone in enumerate(phones):
            label = word if i == 0 else 0
            if i < len(phones) - 1:
                target = fst.add_state()
                fst.add_arc(state, arc(phone, label, 0.0, target))
                state = target
            else:
                fst.add_arc(state, arc(phone, label, LN2, loop))
                fst.add_arc(state, arc(phone, label, LN2, silence))
    kaldifst.arcsort(fst, "olabel")
    return fst


def topology(num_phones):
    states = " ".join(
        f"<State> {k} <PdfClass> {k} <Transition> {k} 0.75 <Transition> {k + 1} 0.25 </State>" for k in range(3)
    )
    phones = " ".join(str(p) for p in range(1, num_phones + 1))
    topo = khg.HmmTopology()
    topo.read(
        f"<Topology> <TopologyEntry> <ForPhones> {phones} </ForPhones> {states} <State> 3 </State> "
        "</TopologyEntry> </Topology>"
    )
    return topo


class Trainer:
    def __init__(self, data):
        ends = np.cumsum(data["lengths"])
        self.features = np.split(data["features"].astype(np.float32), ends[:-1])
        words = np.split(data["words"], np.cumsum(data["num_words"])[:-1])
        prons = np.split(data["phones"], np.cumsum(data["num_phones"])[:-1])
        lexicon = [(int(w), [int(p) for p in ps]) for w, ps in zip(data["lexicon_words"], prons, strict=True)]
        num_phones = int(data["phone_count"])
        topo = topology(num_phones)
        context = khg.monophone_context_dependency(topo.phones, [0] + [3] * num_phones)
        self.transitions = khg.TransitionModel(context, topo)
        compiler = khg.TrainingGraphCompiler(
            self.transitions, context, lexicon_fst(lexicon), [], khg.TrainingGraphCompilerOptions()
        )
        self.graphs = [compiler.compile_graph_from_text([int(w) for w in ws]) for ws in words]
        self.model = self.flat(context.num_pdfs)
        self.paths = [
            kaldifst.get_linear_symbol_sequence(kaldifst.equal_align(g, len(x), 27)[1])[1]
            for g, x in zip(self.graphs, self.features, strict=True)
        ]

    def flat(self, num_pdfs):
        frames = np.concatenate(self.features)
        gmm = khg.DiagGmm(nmix=1, dim=frames.shape[1])
        gmm.set_invvars_and_means((1 / frames.var(0))[None], frames.mean(0)[None])
        gmm.set_weights(np.ones(1, np.float32))
        gmm.compute_gconsts()
        model = khg.AmDiagGmm()
        for _ in range(num_pdfs):
            model.add_pdf(gmm)
        return model

    def align(self):
        for i, (graph, frames) in enumerate(zip(self.graphs, self.features, strict=True)):
            scored = khg.DecodableAmDiagGmmScaled(self.model, self.transitions, frames, 1.0)
            found = khg.align_utterance_wrapper(
                khg.AlignConfig(beam=200), "u", 1.0, self.with_costs(graph), scored, 0, 0, 0, 0.0, 0
            )[5]
            self.paths[i] = found or self.paths[i]

    def with_costs(self, graph):
        graph = graph.copy()
        khg.add_transition_probs(self.transitions, [], 1.0, 0.1, graph)
        return graph

    def estimate(self, num_gaussians):
        sums = khg.AccumAmDiagGmm()
        sums.init(self.model, 15)
        moves = self.transitions.init_stats()
        for frames, path in zip(self.features, self.paths, strict=True):
            for x, transition in zip(frames, path, strict=True):
                sums.accumulate_for_gmm(self.model, x, self.transitions.transition_id_to_pdf(transition), 1.0)
                self.transitions.accumulate(1.0, transition, moves)
        self.transitions.mle_update(moves, khg.MleTransitionUpdateConfig())
        khg.mle_am_diag_gmm_update(khg.MleDiagGmmOptions(), sums, 15, self.model)
        if num_gaussians > self.model.num_gauss:
            occupancies = [sums.get_acc(i).occupancy.sum() for i in range(sums.num_accs)]
            self.model.split_by_count(np.array(occupancies, np.float32), num_gaussians, 0.01, 0.25, 20.0)

    def phones(self):
        return np.concatenate([[self.transitions.transition_id_to_phone(t) for t in path] for path in self.paths])


def main(source, target):
    data = np.load(source)
    begin, cpu = time.perf_counter(), time.process_time()
    trainer = Trainer(data)
    iterations, num_gaussians = int(data["iterations"]), int(data["num_gaussians"])
    growing = iterations * 3 // 4
    realign = set(data["realign"].tolist())
    first = trainer.model.num_gauss
    for i in range(iterations):
        if i in realign:
            trainer.align()
        trainer.estimate(first + (num_gaussians - first) * min(i + 1, growing) // growing if i < growing else 0)
    trainer.align()
    times = np.array([time.perf_counter() - begin, time.process_time() - cpu])
    np.savez(target, phones=trainer.phones(), times=times, num_gaussians=trainer.model.num_gauss)


if __name__ == "__main__":
    main(*sys.argv[1:])
