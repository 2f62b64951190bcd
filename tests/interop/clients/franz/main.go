// What a program with franz-go sees at SERVER: prints a line for each step. go run . SERVER
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic, group      = "orders", "billing"
	partitions, count = 3, 30
	firstMs           = 1767225600000
)

var ctx, _ = context.WithTimeout(context.Background(), time.Minute)

func check(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

func client(more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(more, kgo.SeedBrokers(os.Args[1]))...)
	check(err)
	return made
}

func records(first int) (made []*kgo.Record) {
	for number := first; number < first+count; number++ {
		made = append(made, &kgo.Record{
			Topic: topic, Partition: int32(number % partitions),
			Key: fmt.Appendf(nil, "key %d", number), Value: fmt.Appendf(nil, "value %d", number),
			Headers:   []kgo.RecordHeader{{Key: "number", Value: fmt.Appendf(nil, "%d", number)}},
			Timestamp: time.UnixMilli(firstMs + 1000*int64(number)),
		})
	}
	return
}

func send(first int, codec kgo.CompressionCodec) {
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec))
	defer producer.Close()
	check(producer.ProduceSync(ctx, records(first)...).FirstErr())
}

// A member of the group. It reads until `done`, and notes its partitions.
type member struct {
	client *kgo.Client
	owned  chan int
}

func join() *member {
	made := &member{owned: make(chan int, 100)}
	number := 0
	change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, some map[string][]int32) {
			number += by * len(some[topic])
			made.owned <- number
		}
	}
	made.client = client(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)), kgo.OnPartitionsLost(change(-1)),
	)
	return made
}

func (it *member) poll(found *[]string) {
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	it.client.PollFetches(short).EachRecord(func(one *kgo.Record) {
		line := fmt.Sprintf("%d %03d %s %s %s=%s %d", one.Partition, one.Offset, one.Key, one.Value,
			one.Headers[0].Key, one.Headers[0].Value, one.Timestamp.UnixMilli())
		// After a rebalance a member reads again what no commit covers.
		if !slices.Contains(*found, line) {
			*found = append(*found, line)
		}
	})
}

func (it *member) count(now *int) int {
	for {
		select {
		case *now = <-it.owned:
		default:
			return *now
		}
	}
}

func topics(admin *kadm.Client) []string {
	found, err := admin.ListTopics(ctx)
	check(err)
	names := found.Names()
	sort.Strings(names)
	return names
}

func offsets(found kadm.ListedOffsets, err error) (shown []string) {
	check(err)
	found.Each(func(one kadm.ListedOffset) {
		shown = append(shown, fmt.Sprintf("%d:%d", one.Partition, one.Offset))
	})
	sort.Strings(shown)
	return
}

func main() {
	own := client()
	defer own.Close()
	admin := kadm.NewClient(own)
	_, err := admin.CreateTopic(ctx, partitions, 1, nil, topic)
	check(err)
	_, err = admin.CreateTopic(ctx, partitions, 1, nil, topic)
	fmt.Println("created again", err == kerr.TopicAlreadyExists)
	fmt.Println("topics", topics(admin))
	send(0, kgo.ZstdCompression())
	ends := func() []string { return offsets(admin.ListEndOffsets(ctx, topic)) }
	fmt.Println("ends", ends())
	fmt.Println("at a time", offsets(admin.ListOffsetsAfterMilli(ctx, firstMs+10500, topic)))

	var found []string
	var one, two int
	first := join()
	for len(found) < count {
		first.poll(&found)
	}
	fmt.Println("alone", first.count(&one))
	second := join()
	for first.count(&one)+second.count(&two) != partitions || one == 0 || two == 0 {
		first.poll(&found)
		second.poll(&found)
	}
	send(count, kgo.Lz4Compression())
	for len(found) < 2*count {
		first.poll(&found)
		second.poll(&found)
	}
	sort.Strings(found)
	for _, line := range found {
		fmt.Println("read", line)
	}
	described, err := admin.DescribeGroups(ctx, group)
	check(err)
	fmt.Println("group", described[group].State, described[group].ProtocolType, len(described[group].Members))
	check(first.client.CommitUncommittedOffsets(ctx))
	check(second.client.CommitUncommittedOffsets(ctx))
	second.client.Close()
	first.client.Close()
	committed, err := admin.FetchOffsets(ctx, group)
	check(err)
	for _, each := range committed.Sorted() {
		fmt.Println("committed", each.Partition, each.At)
	}
	described, err = admin.DescribeGroups(ctx, group)
	check(err)
	fmt.Println("left", described[group].State, len(described[group].Members))

	to := kadm.Offsets{}
	to.AddOffset(topic, 1, 5, -1)
	_, err = admin.DeleteRecords(ctx, to)
	check(err)
	fmt.Println("starts", offsets(admin.ListStartOffsets(ctx, topic)))
	_, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("86400000")}}, topic)
	check(err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err)
	for _, each := range configs[0].Configs {
		if each.Key == "retention.ms" {
			fmt.Println("retention.ms", each.MaybeValue())
		}
	}
	_, err = admin.DeleteGroups(ctx, group)
	check(err)
	groups, err := admin.ListGroups(ctx)
	check(err)
	fmt.Println("groups", groups.Groups())
	_, err = admin.DeleteTopics(ctx, topic)
	check(err)
	for len(topics(admin)) > 0 {
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("deleted")
}
