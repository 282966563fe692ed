package hubble

import (
	"context"

	"myelin/hubble/consumer"
)

// Follow hands the flows that are recorded from now on to consumers, each converted once, until ctx ends. If
// the ring overtakes it, the number of lost events is reported to the consumers.
func (o *Observer) Follow(ctx context.Context, consumers []consumer.Consumer) error {
	defer o.Source.Follow()()
	o.shared.join()
	defer o.shared.leave()
	o.Source.Pull()
	r := &reader{
		ring: o.Ring, source: o.Source, convert: o.Converter, tracker: newTracker(o.Interval), pos: o.Ring.Next(),
		shared: &o.shared,
	}
	for {
		for r.step(o.Now) {
			if l := r.overwritten(); l != nil {
				for _, c := range consumers {
					c.Lost(l)
				}
			}
			it, ok, _ := r.take()
			for _, c := range consumers {
				switch {
				case !ok:
				case it.flow != nil:
					c.Consume(it.flow)
				default:
					c.Lost(it.lost)
				}
			}
		}
		if o.Ring.Wait(ctx, r.pos) != nil {
			return nil // ctx has ended
		}
	}
}
