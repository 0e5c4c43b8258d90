// SPDX-License-Identifier: Apache-2.0
// E2B's JavaScript SDKs against the thawboxd that the environment names; run by test_js.py.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import {
  CommandExitError, FileNotFoundError, NotFoundError, Sandbox, Secret, Template, TimeoutError, Volume,
} from '@e2b/code-interpreter'

let box
const later = () => {
  let resolve
  const promise = new Promise((done) => (resolve = done))
  return { promise, resolve }
}
const patient = { timeoutMs: 0, requestTimeoutMs: 120_000 }

before(async () => {
  box = await Sandbox.create({ envs: { A: 'é' }, metadata: { from: 'js' }, timeoutMs: 600_000 })
})
after(async () => {
  assert.equal(await box.kill(), true)
  assert.equal(await box.isRunning(), false)
  await assert.rejects(box.runCode('1'))
})

test('info, list, connect, timeout', async () => {
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.deepEqual(info.metadata, { from: 'js' })
  const items = await Sandbox.list({ query: { metadata: { from: 'js' } } }).nextItems()
  assert.deepEqual(items.map((item) => item.sandboxId), [box.sandboxId])
  await box.setTimeout(900_000)
  const again = await Sandbox.connect(box.sandboxId)
  assert.equal((await again.runCode('import os; os.environ["A"]')).text, 'é')
  assert.equal((await box.getMetrics()).length, 1)
  assert.equal((await again.connect({ timeoutMs: 1000 })).sandboxId, box.sandboxId)
  assert.match(box.getHost(8000), new RegExp(`^8000-${box.sandboxId}\\.`))
})

test('by its id alone', async () => {
  const other = await Sandbox.create('base', { timeoutMs: 60_000, metadata: { from: 'id' } })
  const id = other.sandboxId
  const pages = Sandbox.list({ limit: 1 })
  const seen = []
  while (pages.hasNext) seen.push(...(await pages.nextItems()))
  assert.deepEqual(seen.map((item) => item.sandboxId).slice(0, 2), [id, box.sandboxId], 'newest first, page by page')
  const before = await Sandbox.getInfo(id)
  await Sandbox.setTimeout(id, 900_000)
  assert.ok((await Sandbox.getInfo(id)).endAt - before.endAt > 500_000)
  assert.equal((await Sandbox.getMetrics(id)).length, 1)
  assert.equal(await Sandbox.kill(id), true)
  assert.equal(await Sandbox.kill(id), false)
  await assert.rejects(Sandbox.getInfo(id), NotFoundError)
  await assert.rejects(Sandbox.setTimeout(id, 1000), NotFoundError)
  await assert.rejects(Sandbox.connect(id), NotFoundError)
})

test('code', async () => {
  const seen = []
  const cell = await box.runCode('print("ü\u2028"); x = 1; x + 1', { onStdout: (m) => seen.push(m.line) })
  assert.equal(cell.text, '2')
  assert.deepEqual(cell.logs.stdout, ['ü\u2028\n'])
  assert.deepEqual(seen, cell.logs.stdout)
  const failed = await box.runCode('nope')
  assert.equal(failed.error.name, 'NameError')
  assert.equal((await box.runCode('import os; os.environ["B"]', { envs: { B: 'c' } })).text, 'c')
  assert.equal((await box.runCode('const n = 20; n + 1', { language: 'javascript', ...patient })).text, '21')
  await assert.rejects(box.runCode('1', { language: 'r' }), /thawbox/)
})

test('charts and data', async () => {
  const draw = 'import matplotlib.pyplot as plt\nplt.bar(["a", "b"], [1, 2], label="l"); plt.title("t")'
  const { results } = await box.runCode(draw + '; plt.show()\nimport pandas as pd\npd.DataFrame({"n": [1, None]})', patient)
  assert.equal(results[0].chart.type, 'bar')
  assert.equal(results[0].chart.title, 't')
  assert.deepEqual(results[0].chart.elements[1], { label: 'b', group: 'l', value: 2 })
  assert.deepEqual(results[1].data, { n: [1, null] })
})

test('everything that a cell says, as it says it', async () => {
  const seen = []
  const cell = await box.runCode(
    `
import sys
print("out"); print("err", file=sys.stderr)
from IPython.display import display, HTML
display(HTML("<b>é</b>"))
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.show()
raise ValueError("late")`,
    {
      onStdout: (m) => seen.push(['stdout', m.line]),
      onStderr: (m) => seen.push(['stderr', m.line]),
      onResult: (r) => seen.push(['result', r.formats()]),
      onError: (e) => seen.push(['error', e.name]),
      ...patient,
    }
  )
  assert.deepEqual(seen.map(([kind]) => kind), ['stdout', 'stderr', 'result', 'result', 'error'])
  assert.equal(cell.results[0].html, '<b>é</b>')
  assert.equal(Buffer.from(cell.results[1].png, 'base64').subarray(1, 4).toString(), 'PNG')
  assert.equal(cell.error.value, 'late')
  assert.ok(cell.error.traceback.includes('ValueError'))
})

test('contexts', async () => {
  const context = await box.createCodeContext({ cwd: '/tmp' })
  assert.equal((await box.runCode('import os; y = 1; os.getcwd()', { context, ...patient })).text, '/tmp')
  assert.equal((await box.listCodeContexts()).at(-1).id, context.id)
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('y', { context, ...patient })).error.name, 'NameError')
  await box.removeCodeContext(context.id)
  await assert.rejects(box.runCode('1', { context }), /not found/)
})

test('a client that leaves interrupts', async () => {
  await assert.rejects(box.runCode('import time; time.sleep(300)', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await box.runCode('x', patient)).text, '1')
})

test('files', async () => {
  const info = await box.files.write('dir/a.txt', 'hällo')
  assert.equal(info.path, '/home/user/dir/a.txt')
  assert.equal(await box.files.read('dir/a.txt'), 'hällo')
  assert.equal((await box.files.read('dir/a.txt', { format: 'bytes' })).length, 6)
  assert.deepEqual((await box.files.list('dir')).map((e) => e.name), ['a.txt'])
  assert.equal(await box.files.exists('nothing'), false)
  assert.equal(await box.files.makeDir('dir'), false)
  assert.equal((await box.files.rename('dir/a.txt', 'b.txt')).path, '/home/user/b.txt')
  await box.files.remove('b.txt')
  await assert.rejects(box.files.read('b.txt'), NotFoundError)
  const url = await box.downloadUrl('dir')
  assert.equal((await fetch(url)).status, 400, 'signed, and a folder')
})

test('watch and metadata', async () => {
  await box.files.makeDir('seen')
  const seen = []
  let done
  const all = new Promise((resolve) => (done = resolve))
  const watch = await box.files.watchDir('seen', (event) => {
    seen.push(`${event.type} ${event.name}`)
    if (event.type === 'write') done(event)
  }, { recursive: true, includeEntry: true, timeoutMs: 0 })
  const info = await box.files.write('seen/sub/f', 'x', { metadata: { a: 'b' } })
  assert.deepEqual(info.metadata, { a: 'b' })
  const last = await all
  assert.equal(seen[0], 'create sub')
  assert.equal(last.name, 'sub/f')
  assert.deepEqual(last.entry.metadata, { a: 'b' })
  await watch.stop()
  await assert.rejects(box.files.watchDir('nothing', () => {}), FileNotFoundError)
})

test('ports', async () => {
  assert.match(box.getHost(8000), /^8000-i[a-z0-9]+\.localhost:[0-9]+$/)
})

test('files of every kind, in every form', async () => {
  const big = new Uint8Array(600_000).map((_, i) => i * 7)
  const stream = () => new Blob([big]).stream()
  const written = await box.files.writeFiles([
    { path: 'many/one.txt', data: '1' },
    { path: 'many/with "quotes" é.txt', data: new TextEncoder().encode('2').buffer },
    { path: 'many/three', data: new Blob(['3']) },
  ])
  assert.deepEqual(written.map((info) => info.name), ['one.txt', 'with "quotes" é.txt', 'three'])
  assert.equal((await box.files.write([{ path: 'many/four', data: '4' }])).length, 1)
  assert.equal(await box.files.read('many/with "quotes" é.txt'), '2')
  await box.files.write('big', stream(), { ...patient })
  assert.equal((await box.files.getInfo('big')).size, big.length)
  assert.deepEqual(await box.files.read('big', { format: 'bytes', ...patient }), big)
  assert.equal((await box.files.read('big', { format: 'blob', ...patient })).size, big.length)
  let total = 0
  for await (const piece of await box.files.read('big', { format: 'stream', ...patient })) total += piece.length
  assert.equal(total, big.length)
  await box.files.write('packed', 'x'.repeat(100_000), { gzip: true, ...patient })
  assert.equal((await box.files.getInfo('packed')).size, 100_000)
  const info = await box.files.getInfo('many/one.txt')
  assert.deepEqual([info.type, info.permissions, info.owner], ['file', '-rw-r--r--', 'user'])
  assert.equal((await box.files.write('/root/mine', '5', { user: 'root' })).path, '/root/mine')
  assert.equal(await box.files.makeDir('many/deep/er'), true)
  assert.equal((await box.files.list('many', { depth: 3 })).length, 6)
  const form = new FormData()
  form.append('file', new Blob(['signed']), 'x')
  assert.equal((await fetch(await box.uploadUrl('signed.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal(await (await fetch(await box.downloadUrl('signed.txt', { useSignatureExpiration: 60 }))).text(), 'signed')
})

test('commands', async () => {
  assert.equal((await box.commands.run('echo $A; echo $C', { envs: { C: 'd' }, ...patient })).stdout, 'é\nd\n')
  await assert.rejects(box.commands.run('exit 3', patient), CommandExitError)
  const cat = await box.commands.run('cat', { background: true, stdin: true, ...patient })
  assert.equal((await box.commands.list())[0].pid, cat.pid)
  await box.commands.sendStdin(cat.pid, 'through\n')
  await box.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'through\n')
})

test('a command outlives its client', async () => {
  const command = 'read a; echo got $a; read b; echo got $b >&2; sleep 1000'
  const handle = await box.commands.run(command, { background: true, stdin: true, cwd: '/tmp', ...patient })
  const [listed] = await box.commands.list()
  assert.deepEqual([listed.pid, listed.cmd, listed.cwd], [handle.pid, '/bin/bash', '/tmp'])
  await handle.disconnect()
  const waits = { out: later(), err: later() }
  const again = await box.commands.connect(handle.pid, { onStdout: waits.out.resolve, onStderr: waits.err.resolve, ...patient })
  await again.sendStdin('one\n')
  assert.equal(await waits.out.promise, 'got one\n')
  await box.commands.sendStdin(handle.pid, 'two\n')
  assert.equal(await waits.err.promise, 'got two\n')
  assert.equal(await again.kill(), true)
  await assert.rejects(again.wait(), CommandExitError)
  assert.equal(await box.commands.kill(handle.pid), false)
  await assert.rejects(box.commands.connect(handle.pid), NotFoundError)
  await assert.rejects(box.commands.run('sleep 1000', { timeoutMs: 20_000 }), TimeoutError)
  await assert.rejects(box.commands.run('true', { cwd: '/no/where', ...patient }), /does not exist/)
  assert.equal((await box.commands.run('id -un', { user: 'root', ...patient })).stdout, 'root\n')
})

test('terminal', async () => {
  let seen = ''
  const pty = await box.pty.create({ rows: 24, cols: 80, onData: (data) => (seen += new TextDecoder().decode(data)), ...patient })
  await box.pty.resize(pty.pid, { rows: 30, cols: 90 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait()
  assert.match(seen, /30 90/)
})

test('a terminal outlives its client', async () => {
  const pty = await box.pty.create({ rows: 24, cols: 80, onData: () => {}, ...patient })
  await pty.disconnect()
  const found = later()
  let seen = ''
  const onData = (data) => {
    seen += new TextDecoder().decode(data)
    if (seen.includes('42\r\n')) found.resolve()
  }
  const again = await box.pty.connect(pty.pid, { onData, ...patient })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('echo $((20+22))\n'))
  await found.promise
  assert.equal(await box.pty.kill(pty.pid), true)
  await assert.rejects(again.wait(), CommandExitError)
  assert.equal(await box.pty.kill(pty.pid), false)
})

test('what is not offered says so', async () => {
  await assert.rejects(box.pause(), /thawbox/)
  await assert.rejects(Sandbox.pause(box.sandboxId), /thawbox/)
  await assert.rejects(box.createSnapshot(), /thawbox/)
  await assert.rejects(box.listSnapshots().nextItems(), /thawbox/)
  await assert.rejects(box.fork(), /thawbox/)
  await assert.rejects(box.updateNetwork({ allowOut: ['example.com'] }), /thawbox/)
  await assert.rejects(Sandbox.create({ network: { allowOut: ['example.com'] } }), /thawbox/)
  await assert.rejects(Sandbox.create({ mcp: { duckduckgo: {} } }), /thawbox/)
  await assert.rejects(box.createCodeContext({ language: 'r' }), /thawbox/)
  await assert.rejects(Sandbox.create('nonesuch'), /thawboxd with --template/)
})

test('what is not offered at all says so, too', async () => {
  const calls = [
    () => box.betaPause(), () => Sandbox.deleteSnapshot('s'),
    () => Volume.create('v'), () => Volume.connect('v'), () => Volume.getInfo('v'), () => Volume.list(), () => Volume.destroy('v'),
    () => Secret.create('s', 'v'), () => Secret.update('s', 'v'), () => Secret.getInfo('s'), () => Secret.list().nextItems(),
    () => Secret.exists('s'), () => Secret.destroy('s'),
    () => Template.build(Template().fromBaseImage(), 't'), () => Template.buildInBackground(Template().fromBaseImage(), 't'),
    () => Template.exists('t'), () => Template.aliasExists('t'), () => Template.assignTags('t:a', 'b'),
    () => Template.removeTags('t', 'a'), () => Template.getTags('t'),
  ]
  for (const call of calls) await assert.rejects(call(), /thawbox/, String(call))
})

test('git, as far as it goes without a network', async () => {
  await box.git.configureUser('A', 'a@example.com', patient)
  assert.equal((await box.git.getConfig('user.name', patient)).trim(), 'A')
  await box.git.init('repo', { initialBranch: 'main', ...patient })
  await box.files.write('repo/a.txt', '1')
  assert.deepEqual((await box.git.status('repo', patient)).fileStatus.map((file) => file.name), ['a.txt'])
  await box.git.add('repo', patient)
  await box.git.commit('repo', 'first', patient)
  await box.git.createBranch('repo', 'other', patient)
  assert.equal((await box.git.branches('repo', patient)).currentBranch, 'other')
  await assert.rejects(box.git.clone('https://example.com/r.git', patient), ({ stderr }) => /resolve|unable to access/.test(stderr))
})
