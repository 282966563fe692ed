package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// screen is a terminal whose content is drawn in place, and restored by close. Its methods may be called on nil, which
// is no terminal.
type screen struct {
	out    *os.File
	resize chan os.Signal
}

// Sequences of ECMA-48, and of xterm, that terminals have in common.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	screenLine  = "\x1b[K\r\n" // clears the rest of the line
	screenRest  = "\x1b[K\x1b[J"
)

// openScreen returns nil if w is no terminal.
func openScreen(w io.Writer) (*screen, error) {
	f, ok := w.(*os.File)
	if !ok {
		return nil, nil
	}
	if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err != nil {
		return nil, nil
	}
	if _, err := f.WriteString(screenOpen); err != nil {
		return nil, fmt.Errorf("write to the terminal: %w", err)
	}
	s := &screen{out: f, resize: make(chan os.Signal, 1)}
	signal.Notify(s.resize, unix.SIGWINCH)
	return s, nil
}

func (s *screen) close() {
	if s != nil {
		signal.Stop(s.resize)
		_, _ = s.out.WriteString(screenClose) // nothing else can be done for a terminal that is gone
	}
}

// changed receives when the size has changed.
func (s *screen) changed() <-chan os.Signal {
	if s == nil {
		return nil
	}
	return s.resize
}

// draw shows the part of the text that fits. Its last line says how many lines do not.
func (s *screen) draw(text string) error {
	size, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("read the size of the terminal: %w", err)
	}
	_, err = s.out.WriteString(frame(text, int(size.Col), int(size.Row)))
	return err
}

// frame is the text cut to a terminal's size, over what the terminal shows. A size of 0 is unknown. The last column
// stays empty: terminals differ in what clears a character there.
func frame(text string, columns, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 0 && len(lines) > rows {
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("… %d more lines", len(lines)-rows+1))
	}
	for i, line := range lines {
		if runes := []rune(line); columns > 0 && len(runes) >= columns {
			lines[i] = string(runes[:columns-1])
		}
	}
	return screenHome + strings.Join(lines, screenLine) + screenRest
}
