import { connect } from 'node:net';

/**
 * Sends bytes as they are and hears what comes back until the server closes, which most callers ask for with
 * `Connection: close`.
 */
export function exchange(port: number, bytes: string | Uint8Array): Promise<string> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    const socket = connect(port, '127.0.0.1', () => socket.write(bytes));
    socket.on('data', (chunk) => chunks.push(chunk));
    // A reset after the answer is an end as well.
    socket.on('error', () => {});
    // A server that neither answers nor closes fails the test that asked, and does not hang the run.
    socket.setTimeout(60_000, () => socket.destroy());
    socket.on('close', () => resolve(Buffer.concat(chunks).toString()));
  });
}
