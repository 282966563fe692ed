package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// patience is how long a step may take to be right; those that change nothing
	// get calm.
	patience = 20 * time.Second
	calm     = 5 * time.Second
	// execTime is what an exec may take beside the probes.
	execTime = 15 * time.Second
	// explained is how many failures of a test the agents are asked about.
	explained = 2
)

// runner runs tests.
type runner struct {
	*server
	facts *facts
}

// run runs one test. What it applied is removed, also when it failed or ctx ended.
func (r *runner) run(ctx context.Context, t test) Result {
	begin := time.Now()
	result := Result{Name: t.name, About: t.about, Outcome: Passed}
	if t.skip != "" {
		result.Outcome, result.Reason = Skipped, t.skip
		return result
	}
	if t.broken != "" {
		result.Outcome, result.Reason = Failed, t.broken
		return result
	}
	if t.watch == nil {
		r.steps(ctx, t, &result)
	} else if end, err := r.watch(ctx, t.watch); err != nil {
		result.Outcome, result.Reason = Failed, err.Error()
	} else {
		r.steps(ctx, t, &result)
		if failures := end(); len(failures) > 0 {
			result.Outcome, result.Failures = Failed, append(result.Failures, failures...)
		}
	}
	result.Took = time.Since(begin).Seconds()
	return result
}

// steps makes the steps of a test until one fails.
func (r *runner) steps(ctx context.Context, t test, result *Result) {
	left := map[string]object{}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), execTime)
		defer cancel()
		for path := range left {
			_ = r.Remove(ctx, path) // its namespace goes too
		}
	}()
	for _, s := range t.steps {
		for _, o := range s.apply {
			left[o.path()] = o
		}
		for _, o := range s.remove {
			delete(left, o.path())
		}
		rounds, failures, err := r.step(ctx, s)
		result.Rounds = max(result.Rounds, rounds)
		if err != nil {
			result.Outcome, result.Reason = Failed, err.Error()
		}
		if len(failures) > 0 {
			result.Outcome, result.Failures = Failed, failures
		}
		if result.Outcome == Failed {
			break
		}
	}
}

// step changes what is to be changed, and makes the checks until all are right at
// once, or the time is over.
func (r *runner) step(ctx context.Context, s step) (rounds int, failures []Failure, err error) {
	for _, o := range s.apply {
		if err := r.create(ctx, o); err != nil {
			return 0, nil, err
		}
	}
	for _, o := range s.remove {
		if err := r.Remove(ctx, o.path()); err != nil {
			return 0, nil, fmt.Errorf("delete %s: %w", o.path(), err)
		}
	}
	end := time.Now().Add(calm)
	if len(s.apply)+len(s.remove) > 0 {
		end = time.Now().Add(patience)
	}
	for {
		rounds++
		failed := r.round(ctx, s)
		if len(failed) == 0 || ctx.Err() != nil {
			return rounds, nil, ctx.Err()
		}
		if time.Now().After(end) {
			return rounds, r.explain(ctx, s, failed), nil
		}
		time.Sleep(look)
	}
}

// wrong is a check and what was wrong with it.
type wrong struct {
	check

	problem string
}

// round makes all checks of a step once: those of one pod by one exec.
func (r *runner) round(ctx context.Context, s step) (failed []wrong) {
	var pods []*pod
	byPod := map[*pod][]check{}
	for _, c := range s.checks {
		if !slices.Contains(pods, c.from) {
			pods = append(pods, c.from)
		}
		byPod[c.from] = append(byPod[c.from], c)
	}
	for _, p := range pods {
		checks := byPod[p]
		answers, err := r.probe(ctx, p, checks)
		for i, c := range checks {
			problem := ""
			if err != nil {
				problem = "the pod can't be told to try: " + err.Error()
			} else {
				problem = c.verdict(answers[i])
			}
			if problem != "" {
				failed = append(failed, wrong{c, problem})
			}
		}
	}
	return failed
}

// probe has a pod try.
func (r *runner) probe(ctx context.Context, p *pod, checks []check) ([]Answer, error) {
	limit := execTime
	var probes []Probe
	for _, c := range checks {
		probes = append(probes, c.probe)
		limit += c.probe.Timeout * time.Duration(max(c.probe.Count, 1))
	}
	text, err := json.Marshal(probes)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := r.Exec(ctx, p.namespace, p.name, "/myelin", "connectivity", "probe", string(text))
	if err != nil {
		return nil, err
	}
	var answers []Answer
	if err := json.Unmarshal([]byte(out), &answers); err != nil {
		return nil, fmt.Errorf("read the answers of %s: %w", p, err)
	}
	if len(answers) != len(probes) {
		return nil, errors.New("it answered something else")
	}
	return answers, nil
}
