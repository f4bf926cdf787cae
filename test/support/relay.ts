import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { Transform } from 'node:stream';
import { LOOPBACK } from '../../deploy/ports.ts';

/**
 * Starts a TCP relay to a server that can be cut and mended. It can also hold back data from the
 * server.
 * @param altered returns the data to send to the server in place of a client's data
 */
export async function startRelay(
  first: { readonly host: string; readonly port: number },
  altered = (sent: string) => sent,
) {
  const sockets = new Set<Socket>();
  const pairs = new Map<Socket, Socket>();
  let target = first;
  let isCut = false;
  const server = createServer((near) => {
    if (isCut) return near.destroy();
    const far = connect(target.port, target.host);
    near.pipe(altering(altered)).pipe(far);
    far.pipe(near);
    pairs.set(far, near);
    far.once('close', () => pairs.delete(far));
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(one);
      one.on('error', () => {});
      one.once('close', () => {
        sockets.delete(one);
        other.destroy();
      });
    }
    return undefined;
  });
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  const address = server.address();
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  return {
    host: LOOPBACK,
    port: typeof address === 'object' ? (address?.port ?? 0) : 0,
    cut,
    /**
     * Holds back the server's data on all open connections, until the returned function is called.
     */
    hold() {
      const held = [...pairs];
      for (const [far] of held) {
        far.unpipe();
        far.pause();
      }
      return () => {
        for (const [far, near] of held) far.pipe(near);
      };
    },
    mend: () => {
      isCut = false;
    },
    /** Closes all connections and sends new ones to another server, like a virtual address. */
    moveTo(next: { readonly host: string; readonly port: number }) {
      cut();
      target = next;
      isCut = false;
    },
    close() {
      cut();
      server.close();
    },
  };
}

function altering(altered: (sent: string) => string): Transform {
  return new Transform({
    transform: (chunk: Buffer, _, done) =>
      done(null, Buffer.from(altered(chunk.toString('latin1')), 'latin1')),
  });
}
