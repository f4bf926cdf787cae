import { once } from 'node:events';
import { createServer as createHttpsServer } from 'node:https';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { AttemptReason, DeliveryState } from '../../db/words.ts';
import type { Receiver } from '../../deploy/local/receiver.ts';
import {
  type Behavior,
  bodyDrip,
  ensureCertificate,
  flood,
  gzipBomb,
  headerDrip,
  reset,
  silence,
  status,
} from '../../deploy/local/receiver.ts';

/** One way in which a receiver behaves, and what becomes of a delivery to it. */
export interface Hostility {
  readonly what: string;
  readonly url: string;
  readonly state: DeliveryState;
  /** Of each attempt, in a schedule of two. */
  readonly reasons: readonly (AttemptReason | null)[];
}

/**
 * The sixteen behaviors that receivers are known for, on one receiver and three addresses beside it.
 * @param dir a folder for a certificate that nobody trusts
 * @returns them, and what ends the servers that were started
 */
export async function startHostileReceiver(
  receiver: Receiver,
  dir: string,
): Promise<{ readonly hostilities: readonly Hostility[]; readonly close: () => Promise<void> }> {
  const at = (path: string, behavior: Behavior) => {
    receiver.setBehavior(path, behavior);
    return `${receiver.url}${path}`;
  };
  const { cert, key } = await ensureCertificate(join(dir, 'untrusted'));
  const untrusted = createHttpsServer({ cert, key }, (_request, response) => response.end());
  untrusted.on('tlsClientError', () => {});
  const untrustedPort = await listen(untrusted);
  const closed = createServer();
  const closedPort = await listen(closed);
  closed.close();
  await once(closed, 'close');

  const delivered = (what: string, behavior: Behavior, reason: AttemptReason | null = null): Hostility => ({
    ...{ what, url: at(`/hostile/${what}`, behavior), state: 'delivered', reasons: [reason] },
  });
  const recovers = (what: string, first: Behavior, reason: AttemptReason): Hostility => ({
    ...{ what, url: at(`/hostile/${what}`, thenFine(first)), state: 'delivered', reasons: [reason, null] },
  });
  const never = (what: string, url: string, reason: AttemptReason): Hostility => ({
    ...{ what, url, state: 'failed', reasons: [reason, reason] },
  });
  return {
    hostilities: [
      delivered('200', status(200)),
      delivered('204', status(204)),
      recovers('500', status(500), 'http_status'),
      recovers('503-retry-after', status(503, { 'retry-after': '1' }), 'http_status'),
      recovers('429', status(429), 'http_status'),
      { what: '410', url: at('/hostile/410', status(410)), state: 'failed', reasons: ['gone'] },
      never('redirect', at('/hostile/redirect', status(302, { location: receiver.url })), 'redirect'),
      never('silence', at('/hostile/silence', silence), 'timeout_total'),
      never('header-drip', at('/hostile/header-drip', headerDrip), 'timeout_total'),
      delivered('body-drip', bodyDrip, 'body_timeout'),
      delivered('flood', flood),
      delivered('gzip-bomb', gzipBomb),
      recovers('reset', reset, 'reset'),
      never('bad-tls', `https://127.0.0.1:${untrustedPort}/`, 'tls_certificate'),
      never('unknown-name', 'https://hook.invalid/', 'dns_not_found'),
      never('refused', `https://127.0.0.1:${closedPort}/`, 'refused'),
    ],
    async close() {
      untrusted.close();
      untrusted.closeAllConnections();
      await once(untrusted, 'close');
    },
  };
}

/** The first time so, then 200. */
function thenFine(first: Behavior): Behavior {
  let calls = 0;
  return (response, tcp) => {
    calls += 1;
    const behave: Behavior = calls === 1 ? first : status(200);
    behave(response, tcp);
  };
}

async function listen(server: ReturnType<typeof createServer>): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('the server listens on no port');
  return address.port;
}
