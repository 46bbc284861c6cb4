package demo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/router"
)

// Kinds of requests.
const (
	kindChat     = "chat"
	kindSession  = "session"
	kindDocument = "document"
	kindBurst    = "burst"
	kindStream   = "stream"
)

// message is one turn of a conversation.
type message struct{ role, text string }

// job is one request of the schedule. Times are those of the engines, which may run faster than the clock.
type job struct {
	id       string
	at       time.Duration
	kind     string
	class    router.Class
	session  string
	messages []message
	output   int64 // tokens
	exact    bool  // the output has that length and does not end before
}

// The course of the demonstration, in the engines' time.
const (
	quiet     = 16 * time.Second // chats, sessions and documents come until then
	burstAt   = 16500 * time.Millisecond
	drainAt   = 19 * time.Second
	readyAt   = 21500 * time.Millisecond
	streamsAt = 22500 * time.Millisecond
	killAt    = 23500 * time.Millisecond // or later, once a stream of that engine is on its way
	lastAt    = 26 * time.Second
)

const (
	burstSize = 90
	// aggregate is the pool's cap on open requests: less than the burst.
	aggregate = 60
)

// schedule is the same for every policy: what arrives does not depend on what was answered.
func schedule() []job {
	s := scheduler{rnd: rand.New(rand.NewPCG(7, 11))}
	s.sessions()
	s.documents()
	for range 45 {
		s.chat(kindChat, s.between(0, quiet), 80+s.rnd.IntN(120))
	}
	for i := range burstSize {
		s.chat(kindBurst, burstAt+time.Duration(i)*time.Millisecond, 60)
	}
	for range 10 {
		s.chat(kindChat, s.between(drainAt, readyAt), 100)
	}
	for range 9 {
		s.add(job{
			kind: kindStream, at: s.between(streamsAt, streamsAt+200*time.Millisecond), output: 200, exact: true,
			messages: []message{{"user", s.text(80)}},
		})
	}
	for range 12 {
		s.chat(kindChat, s.between(killAt+300*time.Millisecond, lastAt), 100)
	}
	slices.SortStableFunc(s.jobs, func(a, b job) int { return int(a.at - b.at) })
	counts := map[string]int{}
	for i := range s.jobs {
		j := &s.jobs[i]
		counts[j.kind]++
		j.id = fmt.Sprintf("%s-%d", j.kind, counts[j.kind])
	}
	return s.jobs
}

type scheduler struct {
	rnd  *rand.Rand
	jobs []job
}

func (s *scheduler) add(j job) { s.jobs = append(s.jobs, j) }

func (s *scheduler) between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.rnd.Int64N(int64(to-from)))
}

func (s *scheduler) chat(kind string, at time.Duration, tokens int) {
	s.add(job{
		kind: kind, at: at, class: router.ClassInteractive, messages: []message{{"user", s.text(tokens)}}, output: 30 + s.rnd.Int64N(30),
	})
}

// sessions are twenty conversations with ten applications. The conversations of one application share its long system
// prompt, and each turn has all turns before it in its prompt.
func (s *scheduler) sessions() {
	for app := range 10 {
		system := message{"system", s.text(2500)}
		for talk := range 2 {
			history := []message{system}
			var times []time.Duration
			for range 5 {
				times = append(times, s.between(0, quiet))
			}
			slices.Sort(times)
			for _, at := range times {
				history = append(history, message{"user", s.text(60)})
				s.add(job{
					kind: kindSession, at: at, session: fmt.Sprintf("app%d-%d", app, talk), messages: slices.Clone(history), output: 40,
				})
				history = append(history, message{"assistant", s.text(40)})
			}
		}
	}
}

// documents are long texts about which two questions are asked, some time apart.
func (s *scheduler) documents() {
	for range 7 {
		text := s.text(5000)
		first := s.between(0, quiet/2)
		for _, at := range []time.Duration{first, s.between(first+3*time.Second, quiet)} {
			s.add(job{
				kind: kindDocument, at: at, class: router.ClassBatch, messages: []message{{"user", text + " " + s.text(30)}}, output: 60,
			})
		}
	}
}

// text is some English-looking text of about that many tokens.
func (s *scheduler) text(tokens int) string {
	var b strings.Builder
	for b.Len() < 4*tokens {
		for range 2 + s.rnd.IntN(7) {
			b.WriteByte(byte('a' + s.rnd.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()[:4*tokens]
}
