import { createSocket } from 'node:dgram';
import { Resolver } from 'node:dns/promises';
import { once } from 'node:events';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { decode, encode, type Packet } from 'dns-packet';
import { type DnsServer, startDns } from '../../../deploy/local/dns.ts';
import {
  CLOSED_DOMAIN,
  DIRECT_DOMAIN,
  FREE_MAIL_DOMAINS,
  PRACTICE_DOMAINS,
} from '../../../deploy/local/sim/people.ts';

function resolverOf(server: DnsServer): Resolver {
  const resolver = new Resolver();
  resolver.setServers([server.address]);
  return resolver;
}

test("every simulated domain accepts mail, except the closed practice's", async (t) => {
  const server = await startDns();
  t.teardown(() => server.close());
  const resolver = resolverOf(server);
  for (const domain of [...PRACTICE_DOMAINS, ...FREE_MAIL_DOMAINS, DIRECT_DOMAIN]) {
    const [mx] = await resolver.resolveMx(domain);
    t.like(mx, { exchange: `mx.${domain}`, priority: 10 });
    t.deepEqual(await resolver.resolve6(`mx.${domain}`), ['3ffe::25']);
  }
  const closed = await resolver.resolveMx(CLOSED_DOMAIN);
  t.is(closed.length, 1);
  t.like(closed[0], { exchange: '', priority: 0 });
});

test('the local name server has only MX and A records of the domains in its table', async (t) => {
  const server = await startDns();
  t.teardown(() => server.close());
  const resolver = resolverOf(server);
  await t.throwsAsync(resolver.resolveMx('temporal.io'), { code: 'ENOTFOUND' });
  await t.throwsAsync(resolver.resolveMx('mx.gmail.com'), { code: 'ENODATA' });
  t.deepEqual(await resolver.resolve4('gmail.com'), ['192.0.2.25']);
  await t.throwsAsync(resolver.resolve6('gmail.com'), { code: 'ENODATA' });
  await t.throwsAsync(resolver.resolveTxt('gmail.com'), { code: 'ENODATA' });
});

test('a DNS response repeats the id and the name of its query, in the same case', async (t) => {
  const { ask } = await rawSocket(t);
  const answer = decode(await ask(encode(question(7, 'GMail.COM'))));
  t.is(answer.id, 7);
  t.is(answer.questions?.[0]?.name, 'GMail.COM');
  t.is(answer.answers?.length, 1);
});

test('the local name server drops packets that are not queries and keeps running', async (t) => {
  const { send, ask } = await rawSocket(t);
  // Responding to responses could start an endless loop between two servers.
  send(encode({ ...question(1, 'gmail.com'), type: 'response' }));
  for (const junk of [
    Buffer.alloc(0),
    Buffer.from('hello'),
    Buffer.alloc(512, 0xff),
    Buffer.alloc(12),
  ])
    send(junk);
  t.is(decode(await ask(encode(question(2, 'gmail.com')))).id, 2);
});

function question(id: number, name: string): Packet {
  return { type: 'query', id, questions: [{ type: 'MX', name }] };
}

async function rawSocket(t: ExecutionContext) {
  const server = await startDns();
  const socket = createSocket('udp4');
  t.teardown(async () => {
    socket.close();
    await server.close();
  });
  const send = (packet: Buffer) =>
    socket.send(packet, Number(server.address.split(':')[1]), '127.0.0.1');
  const ask = async (packet: Buffer): Promise<Buffer> => {
    const answered = once(socket, 'message');
    send(packet);
    const [message] = await answered;
    return message;
  };
  return { send, ask };
}
