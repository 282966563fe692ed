package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const root = "../.."

// allPieces are those of a machine that has nothing built, for a change of these files.
func allPieces(t *testing.T, changed ...string) []piece {
	t.Helper()
	t.Chdir(root)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r := &runner{}
	var err error
	if r.tests, err = readTests("test/rings/tests.txt"); err != nil {
		t.Fatal(err)
	}
	return r.pieces(changed)
}

// play runs a schedule in which each piece takes factor times as long as is expected, and returns when the last one
// ends.
func play(s *schedule, factor float64) (names []string, end float64) {
	for end = coreSeconds; ; {
		p, seconds, ok := s.next(end)
		if !ok {
			return names, end
		}
		names = append(names, p.name)
		end += seconds * factor
	}
}

// Three turns run everything, whatever the change touches, on a machine that has nothing built, and none of them takes
// more than the hour.
func TestThreeTurnsRunEverything(t *testing.T) {
	everywhere := []string{"bpf/datapath.c", "kube/source.go", "policy/rules.go", "cni/cni.go", "nat/nat.h"}
	for _, changed := range [][]string{nil, {"README.md"}, everywhere} {
		t.Run(strings.Join(changed, ","), func(t *testing.T) {
			all := allPieces(t, changed...)
			seen := map[string]bool{}
			for turn := range turns {
				names, end := play(newSchedule(all, changed, turn, time.Hour), 1)
				if end > 3600 {
					t.Errorf("turn %d takes %.0f s", turn, end)
				}
				for _, name := range names {
					seen[name] = true
				}
			}
			for _, p := range all {
				if !seen[p.name] && p.turn != turns { // what is touched is in the other parts of the lab ring, too
					t.Errorf("%s runs in no turn", p.name)
				}
			}
		})
	}
}

// What the change touches comes before the rotation, and leaves it its time; what is left out is what is neither.
func TestOrder(t *testing.T) {
	nothing := func(context.Context, *runner) error { return nil }
	all := []piece{
		{"check", 60, nil, always, nil, nothing}, {"a", 1000, nil, 0, []string{"x"}, nothing},
		{"b", 1000, nil, 1, []string{"y"}, nothing}, {"c", 1000, nil, 2, []string{"z", "w"}, nothing},
		{"d", 900, nil, 2, nil, nothing},
	}
	for name, c := range map[string]struct {
		changed []string
		turn    int
		budget  time.Duration
		want    string
	}{
		"rotation":            {nil, 1, 4000 * time.Second, "check b c d"},
		"touched first":       {[]string{"z/file.go"}, 1, 4000 * time.Second, "check c b d"},
		"a file":              {[]string{"w"}, 1, 4000 * time.Second, "check c b d"},
		"not the same folder": {[]string{"zz/file.go", "v/z/file.go"}, 1, 4000 * time.Second, "check b c d"},
		"touched, and time":   {[]string{"x/file.go"}, 2, 3800 * time.Second, "check a c d"},
		"touched, no time":    {[]string{"x/file.go"}, 2, 3700 * time.Second, "check c d"},
		"little time":         {nil, 2, 1700 * time.Second, "check c"},
		"no time":             {nil, 2, 600 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			names, _ := play(newSchedule(all, c.changed, c.turn, c.budget), 1)
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("runs %s, want %s", got, c.want)
			}
		})
	}
}

// A build is counted once, for the piece that comes first, and not where the cache has what it makes.
func TestBuilds(t *testing.T) {
	all := allPieces(t)
	costs := func() (list []float64) {
		s := newSchedule(all, []string{"kube"}, 0, 5*time.Hour)
		for {
			p, seconds, ok := s.next(0)
			if !ok {
				return list
			}
			if len(p.builds) > 0 {
				list = append(list, seconds)
			}
		}
	}
	server, cluster := builds()[serverBuild], builds()[clusterBuild]
	i := slices.IndexFunc(all, func(p piece) bool { return p.name == "Hubble CLI" })
	want := []float64{kubeSeconds + server.seconds, clusterSeconds + cluster.seconds,
		all[i].seconds + builds()[cliBuild].seconds}
	if got := costs(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	made := filepath.Join(cacheDir(), server.file)
	if err := os.MkdirAll(filepath.Dir(made), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(made, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	want[0] = kubeSeconds
	if got := costs(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A machine that is slower than planned leaves pieces out rather than taking longer than one piece over the budget.
func TestSlowMachine(t *testing.T) {
	all := allPieces(t)
	for turn := range turns {
		s := newSchedule(all, nil, turn, time.Hour)
		if _, end := play(s, 2); end > 3600+clusterSeconds+1500 || len(s.left) == 0 {
			t.Errorf("turn %d: ends after %.0f s, leaves %d out", turn, end, len(s.left))
		}
	}
}

func TestTurn(t *testing.T) {
	t.Chdir(root)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	first, why, err := turnOf(t.Context(), -1)
	if err != nil || first < 0 || first >= turns || !strings.Contains(why, "commits") {
		t.Fatal(first, why, err)
	}
	if again, _, _ := turnOf(t.Context(), -1); again != first {
		t.Errorf("turn %d, and then %d", first, again)
	}
	seen := []int{}
	for range turns {
		turn, _, err := turnOf(t.Context(), -1)
		if err != nil || rememberTurn(turn) != nil {
			t.Fatal(err)
		}
		seen = append(seen, turn)
	}
	if slices.Sort(seen); !slices.Equal(seen, []int{0, 1, 2}) {
		t.Errorf("three runs had turns %v", seen)
	}
	if turn, _, _ := turnOf(t.Context(), 5); turn != 2 {
		t.Errorf("turn 5 is %d", turn)
	}
}

// The begin of a change is where its branch left main, or, on main, the commit before; what isn't committed counts.
func TestChangedFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	do := func(args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=t", "-c", "user.email=t@t"}, args...)
		if _, err := git(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(base string, want ...string) {
		t.Helper()
		got, why, err := changedFiles(t.Context(), base)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %s, %v; want %v", got, why, err, want)
		}
	}
	do("init", "-q", "-b", "main")
	for _, name := range []string{"a", "b"} {
		write(name, "1")
		do("add", ".")
		do("commit", "-q", "-m", name)
	}
	expect("", "b")
	write("a", "2")
	expect("", "a", "b")
	do("checkout", "-q", "-b", "branch")
	do("commit", "-q", "-a", "-m", "changed")
	write("c", "1")
	do("add", ".")
	do("commit", "-q", "-m", "c")
	expect("", "a", "c")
	expect("HEAD^", "c")
	if _, _, err := changedFiles(t.Context(), "nowhere"); err == nil {
		t.Error("a commit that is not there is none to begin at")
	}
	if file := labFile("TestNone"); file != "" {
		t.Errorf("TestNone is in %s", filepath.Base(file))
	}
}
