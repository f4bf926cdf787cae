import { once } from 'node:events';
import { request } from 'node:http';
import type { Socket } from 'node:net';
import { AttemptFailure, ProxyUnavailable } from './attempt.ts';

/**
 * Opens a tunnel through an HTTP proxy (RFC 9110, 9.3.6) to an address, never to a name: the proxy would resolve it
 * anew, and might reach what nobody has checked.
 * @param proxy `http://[user:password@]host:port`; it is the operator's own and is not judged
 * @throws {ProxyUnavailable} where the proxy itself cannot be reached
 * @throws {AttemptFailure} `proxy` where it does not let us through to the address
 */
export async function openTunnel(
  proxy: URL,
  target: { readonly address: string; readonly family: number; readonly port: number },
  signal: AbortSignal,
): Promise<Socket> {
  const authority = `${target.family === 6 ? `[${target.address}]` : target.address}:${target.port}`;
  const outgoing = request({
    host: proxy.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: Number(proxy.port || 80),
    method: 'CONNECT',
    path: authority,
    headers: { host: authority, ...authorizationOf(proxy) },
    agent: false,
    signal,
  });
  let reached = false;
  outgoing.once('socket', (socket) => {
    socket.once('connect', () => {
      reached = true;
    });
  });
  outgoing.on('error', () => {});
  outgoing.end();
  let answer: unknown[];
  try {
    answer = await once(outgoing, 'connect', { signal });
  } catch {
    if (!reached) throw new ProxyUnavailable('the webhook proxy cannot be reached: check WEBHOOK_PROXY');
    // A time limit that has passed is the signal's reason, and wins.
    throw new AttemptFailure('proxy');
  }
  const [response, socket, head] = answer as [{ statusCode?: number }, Socket, Buffer];
  const status = response.statusCode ?? 0;
  if (status < 200 || status > 299) {
    socket.destroy();
    throw new AttemptFailure('proxy');
  }
  if (head.length > 0) socket.unshift(head);
  return socket;
}

function authorizationOf({ username, password }: URL): Readonly<Record<string, string>> {
  if (username === '' && password === '') return {};
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return { 'proxy-authorization': `Basic ${Buffer.from(credentials).toString('base64')}` };
}
