package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hardEnd is how long after the budget a piece that hangs is ended.
const hardEnd = 20 * time.Minute

// margin is kept free at the end, for what takes longer than is expected, by pieces that this run doesn't promise.
const margin = 240

// contains is slices.Contains of words.
func contains(list []string, word string) bool { return slices.Contains(list, word) }

// schedule decides which piece is next, and whether there is time for it.
type schedule struct {
	turn   int
	budget float64         // seconds
	left   []piece         // not started yet, in the order in which they are looked at
	built  map[string]bool // what has been built, or is by a piece that has started
}

// newSchedule orders the pieces: what always runs; what the change touches; this turn's third; the next turns'.
func newSchedule(all []piece, changed []string, turn int, budget time.Duration) *schedule {
	s := &schedule{turn: turn, budget: budget.Seconds(), built: builtHere()}
	rank := func(p piece) int {
		switch {
		case p.turn == always:
			return 0
		case touched(p.folders, changed):
			return 1
		case p.turn == turns: // an empty third
			return 2 + turns
		}
		return 2 + (p.turn-turn+turns)%turns
	}
	s.left = slices.Clone(all)
	slices.SortStableFunc(s.left, func(a, b piece) int { return rank(a) - rank(b) })
	return s
}

// next takes the first piece for which there is time, elapsed seconds after the begin, and says how long it takes. What
// isn't of this turn leaves time for all that is.
func (s *schedule) next(elapsed float64) (p piece, seconds float64, ok bool) {
	for i, p := range s.left {
		built := maps.Clone(s.built)
		seconds := p.cost(built)
		end := elapsed + seconds
		if !s.due(p) {
			end += s.reserved(p, built) + margin
		}
		if end <= s.budget {
			s.left = slices.Delete(slices.Clone(s.left), i, i+1)
			markBuilt(s.built, p)
			return p, seconds, true
		}
	}
	return piece{}, 0, false
}

// reserved is the time of what is due, after another piece has run.
func (s *schedule) reserved(after piece, built map[string]bool) (seconds float64) {
	markBuilt(built, after)
	for _, p := range s.left {
		if s.due(p) {
			seconds += p.cost(built)
			markBuilt(built, p)
		}
	}
	return seconds
}

func markBuilt(built map[string]bool, p piece) {
	for _, name := range p.builds {
		built[name] = true
	}
}

// due reports whether a piece is among those that this turn promises.
func (s *schedule) due(p piece) bool { return p.turn == always || p.turn == s.turn }

// runPlanned runs make test and then what there is time for.
func (r *runner) runPlanned(ctx context.Context, o options) error {
	changed, why, err := changedFiles(ctx, o.base)
	if err != nil {
		return err
	}
	turn, whyTurn, err := turnOf(ctx, o.turn)
	if err != nil {
		return err
	}
	s := newSchedule(r.pieces(changed), changed, turn, o.budget)
	fmt.Fprintf(r.out, "change: %d files, %s\nturn: %d of %d, %s\n", len(changed), why, turn, turns, whyTurn)
	writePlan(r, s)
	if o.planOnly {
		return nil
	}
	core := piece{name: "make test", turn: always, run: makes("test")}
	if err := r.piece(ctx, core, coreSeconds, o.budget); err != nil {
		return err
	}
	if err := r.list(ctx); err != nil {
		return err
	}
	if err := useBin(); err != nil { // which make test has built
		return err
	}
	for ctx.Err() == nil {
		p, seconds, ok := s.next(time.Since(r.begin).Seconds())
		if !ok {
			break
		}
		if err := r.piece(ctx, p, seconds, o.budget); err != nil {
			return err
		}
	}
	r.leftOut(s)
	return rememberTurn(turn)
}

// useBin has tests drive the programs that make has built, unless they are told others.
func useBin() error {
	if os.Getenv("MYELIN_BIN") != "" {
		return nil
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		return err
	}
	return os.Setenv("MYELIN_BIN", bin)
}

// piece runs one; what it returns is a failure like a failed test, and doesn't keep the others from running.
func (r *runner) piece(ctx context.Context, p piece, seconds float64, budget time.Duration) error {
	begin, failed := time.Now(), r.tally.failed
	fmt.Fprintf(r.out, "══ %s, about %s\n", p.name, minutes(seconds))
	limited, cancel := context.WithDeadline(ctx, r.begin.Add(budget+hardEnd))
	defer cancel()
	if err := p.run(limited, r); err != nil {
		r.tally.failed++
		fmt.Fprintf(r.out, "FAIL %s: %v\n", p.name, err)
	}
	expected := time.Duration(seconds) * time.Second
	r.took = append(r.took, ran{p.name, time.Since(begin), expected, r.tally.failed > failed})
	return ctx.Err()
}

// writePlan prints what would run if each piece took as long as is expected.
func writePlan(r *runner, real *schedule) {
	s := &schedule{turn: real.turn, budget: real.budget, left: real.left, built: maps.Clone(real.built)}
	fmt.Fprintf(r.out, "plan:\n%7s  make test, %s\n", "0:00", minutes(coreSeconds))
	at := float64(coreSeconds)
	for {
		p, seconds, ok := s.next(at)
		if !ok {
			break
		}
		fmt.Fprintf(r.out, "%7s  %s, %s\n", clock(at), p.name, minutes(seconds))
		at += seconds
	}
	fmt.Fprintf(r.out, "%7s  the end\n", clock(at))
	r.leftOut(s)
}

// leftOut prints what didn't run, and when it does.
func (r *runner) leftOut(s *schedule) {
	for _, p := range s.left {
		when := "no time was left"
		if !s.due(p) && p.turn < turns {
			when = fmt.Sprintf("runs in turn %d", p.turn)
		}
		fmt.Fprintf(r.out, "left out: %s, %s: %s\n", p.name, minutes(p.cost(s.built)), when)
	}
}

func minutes(seconds float64) string { return fmt.Sprintf("%.0f min", max(1, seconds/60)) }

func clock(seconds float64) string { return fmt.Sprintf("%d:%02d", int(seconds)/60, int(seconds)%60) }

// turnOf chooses a third: the one that is asked for, the one after the last run's, where this machine has seen a run,
// or, on a fresh machine, by the number of merges and commits on the main line. So three runs on one machine, or of
// three commits in a row on fresh ones, have run everything.
func turnOf(ctx context.Context, asked int) (turn int, why string, err error) {
	if asked >= 0 {
		return asked % turns, "as asked for", nil
	}
	if text, err := os.ReadFile(turnFile()); err == nil {
		if last, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && last >= 0 {
			return (last + 1) % turns, fmt.Sprintf("the last run here was turn %d", last), nil
		}
	}
	out, err := git(ctx, "rev-list", "--count", "--first-parent", "HEAD")
	if err != nil {
		return 0, "", err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	return n % turns, fmt.Sprintf("by %d commits", n), err
}

func turnFile() string { return filepath.Join(cacheDir(), "ci-turn") }

func rememberTurn(turn int) error {
	if err := os.MkdirAll(cacheDir(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(turnFile(), []byte(strconv.Itoa(turn)+"\n"), 0o644)
}

// changedFiles are those that differ from the commit where the change begins: base, or where HEAD leaves main, or the
// last commit's first parent. Files that aren't committed count, too.
func changedFiles(ctx context.Context, base string) (files []string, why string, err error) {
	why = "since " + base
	if base == "" {
		base, why = beginOf(ctx)
	}
	if base == "" {
		return nil, "nothing to compare with", nil
	}
	out, err := git(ctx, "diff", "--name-only", "--no-renames", base)
	return strings.Fields(out), why, err
}

func beginOf(ctx context.Context) (base, why string) {
	head, _ := git(ctx, "rev-parse", "HEAD")
	for _, branch := range []string{"origin/main", "main"} {
		at, err := git(ctx, "merge-base", "HEAD", branch)
		if err == nil && at != head {
			return strings.TrimSpace(at), "since it left " + branch
		}
	}
	if _, err := git(ctx, "rev-parse", "--verify", "HEAD^1"); err == nil {
		return "HEAD^1", "of the last commit"
	}
	return "", ""
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
